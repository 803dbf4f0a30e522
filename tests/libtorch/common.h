// What the tests of the LibTorch adapter share.
#ifndef FLASHOPTIM_TESTS_LIBTORCH_COMMON_H_
#define FLASHOPTIM_TESTS_LIBTORCH_COMMON_H_

#include <ATen/Functions.h>
#include <flashoptim/torch_adapter.h>
#include <gtest/gtest.h>
#include <torch/types.h>

#include <cstdint>
#include <cstring>
#include <functional>
#include <stdexcept>
#include <string>
#include <vector>

namespace flashoptim {

inline torch::Tensor Weight(std::vector<std::int64_t> shape,
                            torch::ScalarType dtype = torch::kBFloat16) {
  return at::randn(shape).to(dtype).requires_grad_(true);
}

inline std::vector<torch::Tensor> Weights() {
  return {Weight({8, 96}), Weight({12}, torch::kFloat), Weight({4, 70}, torch::kHalf)};
}

inline void SetGradients(const std::vector<torch::Tensor>& parameters, double step) {
  for (torch::Tensor parameter : parameters) {
    parameter.mutable_grad() =
        (parameter.detach().to(torch::kFloat) - 0.1 * step).to(parameter.scalar_type());
  }
}

inline std::vector<torch::Tensor> Copy(const std::vector<torch::Tensor>& tensors) {
  std::vector<torch::Tensor> copies;
  for (const torch::Tensor& tensor : tensors) {
    copies.push_back(tensor.detach().clone().requires_grad_(true));
  }
  return copies;
}

inline bool SameBits(const torch::Tensor& a, const torch::Tensor& b) {
  const torch::Tensor x = a.detach().contiguous();
  const torch::Tensor y = b.detach().contiguous();
  return x.scalar_type() == y.scalar_type() && x.sizes() == y.sizes() &&
         std::memcmp(x.const_data_ptr(), y.const_data_ptr(), x.nbytes()) == 0;
}

inline const FlashParamState& StateOf(const FlashOptimizer& optimizer,
                                      const torch::Tensor& parameter) {
  return dynamic_cast<const FlashParamState&>(
      *optimizer.state().at(parameter.unsafeGetTensorImpl()));
}

inline void ExpectSame(const FlashOptimizer& a, const std::vector<torch::Tensor>& as,
                       const FlashOptimizer& b, const std::vector<torch::Tensor>& bs) {
  for (std::size_t i = 0; i < as.size(); ++i) {
    EXPECT_TRUE(SameBits(as[i], bs[i])) << "weight " << i;
    for (const auto& [name, tensor] : StateOf(a, as[i]).tensors()) {
      EXPECT_TRUE(SameBits(tensor, StateOf(b, bs[i]).tensor(name))) << name << " of " << i;
    }
  }
}

inline void ExpectError(const std::function<void()>& call, const std::string& part) {
  try {
    call();
    ADD_FAILURE() << "nothing was thrown; expected: " << part;
  } catch (const std::invalid_argument& error) {
    EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << error.what();
  }
}

}  // namespace flashoptim

#endif  // FLASHOPTIM_TESTS_LIBTORCH_COMMON_H_

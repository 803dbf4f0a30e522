#include "tensors.h"

#include <ATen/ops/empty_like.h>
#include <ATen/ops/empty_strided.h>

#include <sstream>
#include <stdexcept>
#include <utility>

#include "flashoptim/runtime.h"

namespace flashoptim {
namespace {

template <class... Parts>
[[noreturn]] void Fail(const std::string& name, const Parts&... parts) {
  std::ostringstream message;
  message << name << ": ";
  (message << ... << parts);
  throw std::invalid_argument(message.str());
}

at::ScalarType TorchDType(StateDType dtype) {
  switch (dtype) {
    case StateDType::kInt8:
      return at::kChar;
    case StateDType::kUInt8:
      return at::kByte;
    case StateDType::kInt16:
      return at::kShort;
    case StateDType::kInt64:
      return at::kLong;
    case StateDType::kFloat32:
      break;
  }
  return at::kFloat;
}

at::Device TorchDevice(Device device) {
  if (device.type == DeviceType::kCpu) return at::kCPU;
  return {at::kCUDA, static_cast<at::DeviceIndex>(device.index)};
}

// A dimension of one element has no place of its own.
bool SameOrder(at::IntArrayRef sizes, at::IntArrayRef a, at::IntArrayRef b) {
  for (std::size_t d = 0; d < sizes.size(); ++d) {
    if (sizes[d] == 0) return true;
  }
  for (std::size_t d = 0; d < sizes.size(); ++d) {
    if (sizes[d] != 1 && a[d] != b[d]) return false;
  }
  return true;
}

}  // namespace

std::string ParameterName(std::size_t group, std::size_t position) {
  return "parameter " + std::to_string(position) + " of group " + std::to_string(group);
}

std::optional<DType> StepDType(at::ScalarType dtype) {
  switch (dtype) {
    case at::kBFloat16:
      return DType::kBFloat16;
    case at::kHalf:
      return DType::kFloat16;
    case at::kFloat:
      return DType::kFloat32;
    default:
      return std::nullopt;
  }
}

Parameter Describe(const at::Tensor& parameter, std::string name) {
  if (!parameter.defined()) Fail(name, "it is an undefined tensor; leave it out");
  if (parameter.layout() != at::kStrided) {
    Fail(name, "its layout is ", parameter.layout(),
         "; only dense (strided) tensors can be stepped");
  }
  const std::optional<DType> dtype = StepDType(parameter.scalar_type());
  if (!dtype) {
    Fail(name, "its dtype is ", parameter.scalar_type(),
         ", and BFloat16, Half and Float can be stepped; convert the model, for instance with "
         "model->to(torch::kBFloat16)");
  }
  const at::Device place = parameter.device();
  if (!place.is_cpu() && !place.is_cuda()) {
    Fail(name, "it is on ", place, "; CPU and CUDA tensors can be stepped: move it");
  }
  if (place.is_cuda() && !CudaAvailable()) {
    Fail(name, "it is on ", place, " (", CudaStatus(), "); move it, for instance with ",
         "model->to(torch::kCPU)");
  }
  Parameter described;
  described.name = std::move(name);
  described.data = parameter.data_ptr();
  described.dtype = *dtype;
  described.shape = parameter.sizes().vec();
  described.strides = parameter.strides().vec();
  if (place.is_cuda()) described.device = {DeviceType::kCuda, place.index()};
  return described;
}

bool LiesLike(const at::Tensor& gradient, const at::Tensor& parameter) {
  return gradient.layout() == at::kStrided && gradient.sizes() == parameter.sizes() &&
         gradient.device() == parameter.device() && !gradient.is_neg() &&
         StepDType(gradient.scalar_type()).has_value() &&
         SameOrder(parameter.sizes(), gradient.strides(), parameter.strides());
}

at::Tensor UsableGradient(const at::Tensor& gradient, const at::Tensor& parameter,
                          const std::string& name) {
  if (gradient.layout() != at::kStrided) {
    Fail(name, "its gradient is sparse (", gradient.layout(),
         "); use a dense one, for instance torch::nn::EmbeddingOptions(...).sparse(false)");
  }
  if (gradient.sizes() != parameter.sizes() || gradient.device() != parameter.device()) {
    Fail(name, "its gradient is ", gradient.sizes(), " on ", gradient.device(),
         ", and the parameter ", parameter.sizes(), " on ", parameter.device(),
         "; call zero_grad() after changing a parameter");
  }
  if (!StepDType(gradient.scalar_type())) {
    Fail(name, "its gradient is ", gradient.scalar_type(), " and the parameter ",
         parameter.scalar_type(), "; BFloat16, Half and Float gradients can be read");
  }
  at::Tensor resolved = gradient.resolve_neg();
  if (LiesLike(resolved, parameter)) return resolved;
  return at::empty_like(parameter, parameter.options().dtype(gradient.scalar_type()))
      .copy_(resolved);
}

at::Tensor Allocate(const StateEntry& entry) {
  return at::empty_strided(entry.shape, entry.strides,
                           at::device(TorchDevice(entry.device)).dtype(TorchDType(entry.dtype)));
}

std::string Misfit(const at::Tensor& tensor, const StateEntry& entry) {
  std::ostringstream message;
  if (!tensor.defined()) {
    message << "has no tensor '" << entry.name << "'";
  } else if (tensor.scalar_type() != TorchDType(entry.dtype) ||
             tensor.sizes() != at::IntArrayRef(entry.shape)) {
    message << "has '" << entry.name << "' as " << tensor.scalar_type() << " " << tensor.sizes()
            << ", and it should be " << TorchDType(entry.dtype) << " "
            << at::IntArrayRef(entry.shape);
  }
  return message.str();
}

bool LiesAs(const at::Tensor& tensor, const StateEntry& entry) {
  return tensor.device() == TorchDevice(entry.device) &&
         SameOrder(tensor.sizes(), tensor.strides(), entry.strides);
}

at::Tensor Place(const at::Tensor& tensor, const StateEntry& entry) {
  return LiesAs(tensor, entry) ? tensor : Allocate(entry).copy_(tensor);
}

}  // namespace flashoptim

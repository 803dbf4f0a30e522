// What the C++ API refuses, by its message: each names the tensor, the value and the remedy, and
// nothing was written.
#include <gtest/gtest.h>

#include <bit>
#include <cstdint>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "flashoptim/optimizer.h"
#include "flashoptim/runtime.h"

namespace flashoptim {
namespace {

constexpr std::int64_t kHuge = std::numeric_limits<std::int64_t>::max();

alignas(64) std::byte memory[4096];

Parameter Fp32(std::vector<std::int64_t> shape = {4, 8}) {
  return {"w", memory, DType::kFloat32, std::move(shape)};
}

template <class Change>
Parameter Changed(const Change& change) {
  Parameter parameter = Fp32();
  change(parameter);
  return parameter;
}

template <class Change>
Options AdamW(const Change& change) {
  AdamWOptions options;
  change(options);
  return options;
}

template <class Error, class Call>
void ExpectError(const Call& call, const std::string& part) {
  try {
    call();
    ADD_FAILURE() << "nothing was thrown; expected: " << part;
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << error.what();
  }
}

TEST(OptimizerErrors, Descriptions) {
  struct Row {
    Parameter parameter;
    std::string message;
  };
  const std::vector<Row> rows = {
      {Changed([](Parameter& p) { p.name = ""; }), "parameter 0 has no name"},
      {Changed([](Parameter& p) { p.data = nullptr; }), "tensor 'w': its weight has no address"},
      {Changed([](Parameter& p) { p.data = memory + 1; }), "is not aligned to its element size"},
      {Fp32({-1, 2}), "tensor 'w': a dimension has the size -1"},
      {Fp32({kHuge, 2}), "elements; check the sizes"},
      {Fp32({kHuge, kHuge, 0}), "elements; check the sizes"},
      {Changed([](Parameter& p) { p.data = std::bit_cast<void*>(UINTPTR_MAX - 3); }),
       "runs past the end of the address space"},
      {Fp32(std::vector<std::int64_t>(65, 1)), "65 dimensions"},
      {Changed([](Parameter& p) { p.strides = {8}; }), "tensor 'w': a tensor needs one stride"},
      {Changed([](Parameter& p) {
         p.strides = {16, 1};
       }),
       "tensor 'w': sizes [4, 8] with strides"},
      {Changed([](Parameter& p) {
         p.strides = {0, 1};
       }),
       "holes or overlaps"},
      {Changed([](Parameter& p) {
         p.strides = {kHuge, kHuge};
       }),
       "holes or overlaps"},
      {Changed([](Parameter& p) { p.device.index = -1; }), "the device index is -1"},
      {Changed([](Parameter& p) { p.device.index = 2; }), "on the CPU it must be 0"},
  };
  for (const Row& row : rows) {
    SCOPED_TRACE(row.message);
    ExpectError<std::invalid_argument>(
        [&] { const Optimizer optimizer(AdamWOptions{}, {row.parameter}); }, row.message);
  }
}

TEST(OptimizerErrors, OptionsNameTheirGroup) {
  struct Row {
    Options options;
    std::string message;
  };
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const std::vector<Row> rows = {
      {AdamW([](auto& o) { o.lr = -1.0; }), "parameter group 0: lr must be"},
      {AdamW([&](auto& o) { o.eps = nan; }), "eps must be"},
      {AdamW([](auto& o) { o.beta2 = 1.0; }), "betas[1] must be in [0, 1), not 1"},
      {AdamW([](auto& o) { o.storage.master_weight_bits = 20; }),
       "master_weight_bits must be 16, 24 or 32, not 20"},
      {SgdOptions{.nesterov = true}, "nesterov needs a momentum"},
      {LionOptions{.weight_decay = -0.5}, "weight_decay must be"},
      {SgdwOptions{.decouple_lr = true, .initial_lr = -2.0}, "initial_lr must be"},
  };
  for (const Row& row : rows) {
    SCOPED_TRACE(row.message);
    ExpectError<std::invalid_argument>([&] { const Optimizer optimizer(row.options, {Fp32()}); },
                                       row.message);
  }
  ExpectError<std::invalid_argument>([] { const Optimizer optimizer({}); },
                                     "at least one parameter group");
  ExpectError<std::invalid_argument>(
      [] {
        const Optimizer optimizer({{AdamWOptions{}, {}}, {LionOptions{}, {}}});
      },
      "parameter group 1: its options are of Lion and those of group 0 of AdamW");
}

TEST(OptimizerErrors, TensorsThatShareANameOrMemory) {
  Parameter second = Fp32();
  ExpectError<std::invalid_argument>(
      [&] {
        const Optimizer optimizer(AdamWOptions{}, {Fp32(), second});
      },
      "two tensors");
  second.name = "v";
  second.data = memory + 64;
  ExpectError<std::invalid_argument>(
      [&] {
        const Optimizer optimizer(AdamWOptions{}, {Fp32(), second});
      },
      "tensor 'v': its weight overlaps with tensor 'w': its weight");
  second.data = memory + 128;
  EXPECT_NO_THROW(Optimizer(AdamWOptions{}, {Fp32(), second}));
}

TEST(OptimizerErrors, StateMemory) {
  const std::vector<ParameterGroup> groups = {{SgdOptions{}, {Fp32()}}};
  const auto make = [&](const StateMemory& state) { const Optimizer optimizer(groups, state); };
  ExpectError<std::invalid_argument>([&] { make({{memory}}); }, "1 addresses for 2 state tensors");
  ExpectError<std::invalid_argument>([&] { make({{memory, nullptr}}); }, "overlaps with");
  ExpectError<std::invalid_argument>(
      [&] {
        make({{memory + 1026, nullptr}});
      },
      "tensor 'w': its 'step' is not aligned");
  float step = 0.5F;
  ExpectError<std::invalid_argument>(
      [&] {
        make({{&step, nullptr}, true});
      },
      "tensor 'w': the step count is 0.5");
  EXPECT_EQ(step, 0.5F);
}

TEST(OptimizerErrors, Calls) {
  std::vector<float> weight(32, 1.0F);
  Optimizer optimizer(SgdOptions{.momentum = 0.9}, {{"w", weight.data(), DType::kFloat32, {4, 8}}});
  const std::vector<std::pair<std::function<void()>, std::string>> rows = {
      {[&] { optimizer.SetGradient(1, weight.data(), DType::kFloat32); }, "parameter 1 of 1"},
      {[&] { optimizer.SetGradient("x", weight.data(), DType::kFloat32); }, "named 'x'"},
      {[&] { optimizer.SetGradient(0, nullptr, DType::kFloat32); },
       "tensor 'w': the gradient has no address"},
      {[&] { optimizer.SetGradient(0, memory + 1, DType::kBFloat16); }, "is not aligned"},
      {[&] { optimizer.SetGradientScale(0.0F); }, "the gradient scale must be"},
      {[&] { optimizer.SetStream(0, nullptr); }, "no parameter is on GPU 0"},
      {[&] { optimizer.SetLr(1, 0.1); }, "parameter group 1 of 1"},
      {[&] { optimizer.SetLr(0, -0.1); }, "parameter group 0: lr must be"},
      {[&] { optimizer.SetOptions(0, SgdOptions{}); }, "make a new optimizer"},
      {[&] { optimizer.SetOptions(0, SgdwOptions{.momentum = 0.9}); }, "the options are of SGDW"},
      {[&] { optimizer.ReadState(StateEntry{}, memory); }, "is not one of this optimizer"},
      {[&] { optimizer.WriteMasterWeights(0, std::vector<float>(31)); },
       "tensor 'w': 31 master weights for 32 elements"},
  };
  for (const auto& [call, message] : rows) {
    SCOPED_TRACE(message);
    ExpectError<std::invalid_argument>(call, message);
  }
  EXPECT_EQ(optimizer.lr(0), 1e-3);
  const float half = 0.5F;
  ExpectError<std::invalid_argument>(
      [&] { optimizer.WriteState(*optimizer.FindState(0, "step"), &half); }, "step count is 0.5");
  EXPECT_EQ(weight, std::vector<float>(32, 1.0F));
}

TEST(OptimizerErrors, ANonfiniteGradientUnderThePolicyError) {
  std::vector<float> weight(4, 1.0F);
  std::vector<float> gradient(4, std::numeric_limits<float>::infinity());
  Optimizer optimizer(SgdOptions{.storage = {.nonfinite = Nonfinite::kError}},
                      {{"w", weight.data(), DType::kFloat32, {4}}});
  optimizer.SetGradient(0, gradient.data(), DType::kFloat32);
  ExpectError<NonfiniteGradientError>([&] { optimizer.Step(); }, "the gradient of 'w'");
  EXPECT_EQ(weight, std::vector<float>(4, 1.0F));
  EXPECT_EQ(optimizer.StepCount(0), 0U);
}

TEST(OptimizerErrors, AGpuThatIsNotThere) {
  if (CudaAvailable()) GTEST_SKIP() << "this machine has a GPU";
  ExpectError<DeviceError>(
      [] {
        const Optimizer optimizer(AdamWOptions{}, {Changed([](Parameter& p) {
                                    p.device = {DeviceType::kCuda, 0};
                                  })});
      },
      "tensor 'w': it is on GPU 0");
}

}  // namespace
}  // namespace flashoptim

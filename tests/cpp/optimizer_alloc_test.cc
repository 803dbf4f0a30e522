// A step of an optimizer allocates nothing, whatever its rule; nor do a new learning rate, a new
// gradient or a new gradient scale.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "count_allocations.h"
#include "flashoptim/optimizer.h"
#include "flashoptim/runtime.h"

namespace flashoptim {
namespace {

std::uint64_t AllocationsOfSteps(const Options& options) {
  std::vector<std::uint16_t> matrix(300 * 70, 0x3f80);
  std::vector<float> bias(70, 0.5F);
  const std::vector<float> gradient(matrix.size(), 1e-2F);
  Optimizer optimizer(options, {{"matrix", matrix.data(), DType::kBFloat16, {300, 70}},
                                {"bias", bias.data(), DType::kFloat32, {70}},
                                {"none", nullptr, DType::kFloat32, {0}}});
  const auto step = [&](double lr) {
    for (std::size_t i = 0; i < optimizer.size(); ++i) {
      optimizer.SetGradient(i, gradient.data(), DType::kFloat32);
    }
    optimizer.SetLr(0, lr);
    optimizer.SetGradientScale(2.0F);
    optimizer.Step();
    optimizer.ClearGradient(1);
    optimizer.Step();
  };
  step(1e-3);  // the first one may start threads
  const std::uint64_t before = allocations.load();
  for (int i = 0; i < 20; ++i) step(1e-3 / (i + 1));
  return allocations.load() - before;
}

TEST(OptimizerAllocations, AreCounted) {
  if (!kCounting) GTEST_SKIP() << "the sanitizer has replaced the allocator";
  const std::uint64_t before = allocations.load();
  const std::vector<std::string> some(3, std::string(100, 'x'));
  EXPECT_GE(allocations.load() - before, some.size());
}

TEST(OptimizerAllocations, AStepMakesNone) {
  if (!kCounting) GTEST_SKIP() << "the sanitizer has replaced the allocator";
  const std::vector<Options> all = {
      SgdOptions{},
      SgdwOptions{.momentum = 0.9, .nesterov = true},
      AdamOptions{.amsgrad = true},
      AdamWOptions{.storage = {.stochastic_rounding = true, .nonfinite = Nonfinite::kSkip}},
      AdamWOptions{.storage = {.codec = Codec::kSoftsign, .nonfinite = Nonfinite::kError}},
      LionOptions{.decouple_lr = true}};
  for (const int threads : {1, 3}) {
    SetCpuThreads(threads);
    for (const Options& options : all) {
      EXPECT_EQ(AllocationsOfSteps(options), 0U) << NameOf(options) << ", " << threads;
    }
  }
}

}  // namespace
}  // namespace flashoptim

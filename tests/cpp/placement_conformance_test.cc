// Where buffers lie and what the caller's floating-point mode is changes no byte.
#include <gtest/gtest.h>

#include <string>

#include "cases.h"
#include "flashoptim/plan.h"
#include "flashoptim/runtime.h"
#include "tensor_state.h"

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

namespace flashoptim {
namespace {

using testing::Shape;
using testing::StepCase;
using testing::TensorState;

constexpr std::uint64_t kSeed = 78;

class EveryTarget : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override { SetCpuTarget(GetParam()); }
};

// Every buffer one element behind a 64-byte boundary, so that no vector of any width is aligned.
TEST_P(EveryTarget, MisalignedBuffers) {
  for (const StepCase& step_case : testing::ThinCases()) {
    for (const Shape& shape : {Shape{1, 200, 4}, Shape{3, 128, 4}}) {
      TensorState aligned(step_case, shape, kSeed, false);
      TensorState misaligned(step_case, shape, kSeed, true);
      Plan plans[] = {testing::PlanOf({&aligned}), testing::PlanOf({&misaligned})};
      for (int step = 1; step <= shape.steps; ++step) {
        aligned.FillGradient(step);
        misaligned.FillGradient(step);
        testing::SetGradients(plans[0], {&aligned});
        testing::SetGradients(plans[1], {&misaligned});
        for (Plan& plan : plans) plan.Step();
        ASSERT_EQ(misaligned.DifferenceFrom(aligned), "");
        ASSERT_TRUE(misaligned.GuardsAreIntact());
      }
    }
  }
}

#if defined(__x86_64__)

constexpr unsigned kMasked = 0x1f80U;        // exceptions masked, nearest rounding
constexpr unsigned kFlushAndZero = 0x8040U;  // FTZ and DAZ
constexpr unsigned kModes[] = {kMasked | kFlushAndZero, kMasked | 0x2000U /* down */,
                               kMasked | 0x4000U /* up */,
                               kMasked | 0x6000U /* toward zero */ | kFlushAndZero};
constexpr unsigned kStickyFlags = 0x3fU;

// A scope with another control word.
class Mode {
 public:
  explicit Mode(unsigned mode) : saved_(_mm_getcsr()), mode_(mode) { _mm_setcsr(mode); }
  ~Mode() { _mm_setcsr(saved_); }
  Mode(const Mode&) = delete;
  Mode& operator=(const Mode&) = delete;

  bool IsStillSet() const { return (_mm_getcsr() & ~kStickyFlags) == mode_; }

 private:
  unsigned saved_;
  unsigned mode_;
};

void StepInMode(const StepCase& step_case, Shape shape, unsigned mode, TensorState& tensor) {
  Plan plan = testing::PlanOf({&tensor});
  for (int step = 1; step <= shape.steps; ++step) {
    tensor.FillGradient(step);
    testing::SetGradients(plan, {&tensor});
    bool still_set = false;
    {
      const Mode scope(mode);
      plan.SetHyperparameters(0, step_case.rule.hyper);
      plan.Step();
      still_set = scope.IsStillSet();
    }
    ASSERT_TRUE(still_set) << "mode 0x" << std::hex << mode;
  }
}

TEST_P(EveryTarget, TheCallersModeChangesNothingAndComesBack) {
  const Shape shape = {40, 450, 2};  // two chunks, so that the pool's threads take part
  for (const int threads : {1, 3}) {
    SetCpuThreads(threads);
    std::size_t turn = 0;
    for (const StepCase& step_case : testing::ThinCases()) {
      TensorState plain(step_case, shape, kSeed);
      ASSERT_NO_FATAL_FAILURE(StepInMode(step_case, shape, kMasked, plain));
      const unsigned mode = kModes[turn++ % std::size(kModes)];
      TensorState other(step_case, shape, kSeed);
      ASSERT_NO_FATAL_FAILURE(StepInMode(step_case, shape, mode, other));
      ASSERT_EQ(other.DifferenceFrom(plain), "") << "mode 0x" << std::hex << mode;
    }
  }
}

// A caller that traps on floating-point exceptions is not interrupted by those of a step.
TEST_P(EveryTarget, TheCallersTrapsStaySilent) {
  StepCase step_case = testing::ThinCases().front();
  step_case.values = testing::Values::kWild;
  const Shape shape = {3, 70, 3};
  TensorState plain(step_case, shape, kSeed);
  TensorState trapped(step_case, shape, kSeed);
  ASSERT_NO_FATAL_FAILURE(StepInMode(step_case, shape, kMasked, plain));
  ASSERT_NO_FATAL_FAILURE(StepInMode(step_case, shape, 0, trapped));
  EXPECT_EQ(trapped.DifferenceFrom(plain), "");
}

#endif

INSTANTIATE_TEST_SUITE_P(Targets, EveryTarget, ::testing::ValuesIn(CpuTargets()),
                         [](const auto& target) { return target.param; });

}  // namespace
}  // namespace flashoptim

// FLASHOPTIM_CPU_TARGET forces a CPU target. CMake runs this program once for each value, before
// anything in it has chosen a target.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "cases.h"
#include "cpu/targets.h"
#include "flashoptim/plan.h"
#include "flashoptim/runtime.h"
#include "tensor_state.h"

namespace flashoptim {
namespace {

class ForcedTarget : public ::testing::Test {
 protected:
  void SetUp() override {
    const char* forced = std::getenv("FLASHOPTIM_CPU_TARGET");
    if (forced == nullptr || *forced == '\0') GTEST_SKIP() << "FLASHOPTIM_CPU_TARGET is not set";
    forced_ = forced;
    const std::vector<std::string> targets = CpuTargets();
    if (std::find(targets.begin(), targets.end(), forced_) == targets.end()) {
      GTEST_SKIP() << "this machine cannot run " << forced_;
    }
  }

  std::string forced_;
};

TEST_F(ForcedTarget, IsTheOneInUse) { EXPECT_EQ(CpuTarget(), forced_); }

// The name is right, and so is the code behind it.
TEST_F(ForcedTarget, RunsItsOwnCode) {
  const cpu::StepGroupsFunction chosen = cpu::ChosenTarget().step_groups;
  for (const cpu::Target& target : cpu::SupportedTargets()) {
    EXPECT_EQ(target.step_groups == chosen, target.name == forced_) << target.name;
  }
}

TEST_F(ForcedTarget, StepsLikeScalar) {
  for (const testing::StepCase& step_case : testing::ThinCases()) {
    const testing::Shape shape = {3, 70, 0};
    testing::TensorState forced(step_case, shape, 3);
    testing::TensorState scalar(step_case, shape, 3);
    Plan plans[] = {testing::PlanOf({&forced}), testing::PlanOf({&scalar})};
    for (int step = 1; step <= 3; ++step) {
      forced.FillGradient(step);
      scalar.CopyGradientFrom(forced);
      testing::SetGradients(plans[0], {&forced});
      testing::SetGradients(plans[1], {&scalar});
      SetCpuTarget(forced_);
      plans[0].Step();
      SetCpuTarget("scalar");
      plans[1].Step();
      SetCpuTarget(forced_);
    }
    ASSERT_EQ(forced.DifferenceFrom(scalar), "");
  }
}

}  // namespace
}  // namespace flashoptim

// Every CPU target against the target `scalar`: every byte of state after every step.
#include <gtest/gtest.h>

#include <set>
#include <string>
#include <vector>

#include "cases.h"
#include "flashoptim/plan.h"
#include "flashoptim/runtime.h"
#include "sanitizers.h"
#include "tensor_state.h"

namespace flashoptim {
namespace {

using testing::RuleCase;
using testing::RuleCases;
using testing::Shape;
using testing::StepCase;
using testing::TensorState;
using testing::Values;

std::vector<std::string> SimdTargets() {
  std::vector<std::string> targets = CpuTargets();
  targets.pop_back();
  return targets;
}

// Tensors of all shapes in one plan, with a target of its own.
class Follower {
 public:
  Follower(const StepCase& step_case, const std::vector<Shape>& shapes, std::string target)
      : target_(std::move(target)) {
    tensors_.reserve(shapes.size());
    for (std::size_t i = 0; i < shapes.size(); ++i) {
      tensors_.emplace_back(step_case, shapes[i], 1000 + i);
    }
    plan_ = std::make_unique<Plan>(testing::PlanOf(Pointers()));
  }

  void FillGradients(int step) {
    for (TensorState& tensor : tensors_) tensor.FillGradient(step);
  }
  void CopyGradients(const Follower& other) {
    for (std::size_t i = 0; i < tensors_.size(); ++i) {
      tensors_[i].CopyGradientFrom(other.tensors_[i]);
    }
  }

  void Step() {
    testing::SetGradients(*plan_, Pointers());
    SetCpuTarget(target_);
    plan_->Step();
  }

  // Empty if all bytes agree.
  std::string DifferenceFrom(const Follower& other) const {
    for (std::size_t i = 0; i < tensors_.size(); ++i) {
      const std::string difference = tensors_[i].DifferenceFrom(other.tensors_[i]);
      if (!difference.empty()) return target_ + ": " + difference;
      if (!tensors_[i].GuardsAreIntact()) return target_ + ": wrote outside of a buffer";
    }
    return "";
  }

 private:
  std::vector<TensorState*> Pointers() {
    std::vector<TensorState*> pointers;
    for (TensorState& tensor : tensors_) pointers.push_back(&tensor);
    return pointers;
  }

  std::string target_;
  std::vector<TensorState> tensors_;
  std::unique_ptr<Plan> plan_;
};

void ExpectSameBytes(const StepCase& step_case, const std::vector<Shape>& shapes, int steps) {
  Follower scalar(step_case, shapes, "scalar");
  std::vector<Follower> followers;
  for (const std::string& target : SimdTargets()) followers.emplace_back(step_case, shapes, target);
  for (int step = 1; step <= steps; ++step) {
    scalar.FillGradients(step);
    scalar.Step();
    for (Follower& follower : followers) {
      follower.CopyGradients(scalar);
      follower.Step();
      ASSERT_EQ(follower.DifferenceFrom(scalar), "") << "step " << step;
    }
  }
}

TEST(Cases, TheThinTableHasEveryValueOfEveryColumn) {
  std::set<std::string> seen;
  for (const StepCase& step_case : testing::ThinCases()) {
    const std::string rule = step_case.rule.name;
    seen.insert(rule + " stochastic " + std::to_string(step_case.rule.hyper.stochastic_rounding));
    seen.insert(rule + " codec " + std::to_string(static_cast<int>(step_case.codec)));
    seen.insert(rule + " gradient " + std::to_string(static_cast<int>(step_case.gradient_dtype)));
    seen.insert(rule + " values " + std::to_string(static_cast<int>(step_case.values)));
    seen.insert(step_case.weight.name + " codec " +
                std::to_string(static_cast<int>(step_case.codec)));
    seen.insert(step_case.weight.name + " values " +
                std::to_string(static_cast<int>(step_case.values)));
  }
  const std::size_t with_moments = 13;  // of 15 rules; the others have the codec none only
  EXPECT_EQ(RuleCases().size(), with_moments + 2);
  EXPECT_EQ(seen.size(), 15 * (2 + 3 + 3) + with_moments * 3 + 2 + 7 * (3 + 3));
}

class EveryRule : public ::testing::TestWithParam<RuleCase> {};

TEST_P(EveryRule, SmallTensors) {
  SetCpuThreads(1);  // nothing to share out
  for (const StepCase& step_case : testing::AllCases(GetParam())) {
    // 200 steps for what training meets; the rest is as rich after a few.
    const bool ordinary =
        step_case.values == Values::kOrdinary && step_case.gradient_dtype == DType::kBFloat16;
    const int steps = testing::kSanitized ? 10 : ordinary ? 200 : 24;
    ExpectSameBytes(step_case, testing::SmallShapes(), steps);
    if (HasFatalFailure()) return;
  }
}

TEST_P(EveryRule, EveryTail) {
  std::vector<Shape> shapes;
  for (std::uint64_t length = 0; length <= 200; ++length) shapes.push_back({1, length, 0});
  for (const StepCase& step_case : testing::ThinCases()) {
    if (step_case.rule.name != GetParam().name) continue;
    ExpectSameBytes(step_case, shapes, 4);
    if (HasFatalFailure()) return;
  }
}

TEST_P(EveryRule, LargeTensors) {
  std::size_t turn = 0;
  for (const StepCase& step_case : testing::ThinCases()) {
    if (step_case.rule.name != GetParam().name) continue;
    const std::vector<Shape> shapes = testing::LargeShapes();
    const Shape& shape = shapes[turn++ % shapes.size()];
    // A million elements of one case are enough for a sanitizer.
    if (testing::kSanitized && turn > 3) break;
    ExpectSameBytes(step_case, {shape}, shape.steps);
    if (HasFatalFailure()) return;
  }
}

INSTANTIATE_TEST_SUITE_P(Rules, EveryRule, ::testing::ValuesIn(RuleCases()),
                         [](const auto& rule) { return rule.param.name; });

}  // namespace
}  // namespace flashoptim

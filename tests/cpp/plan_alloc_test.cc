// A step of a plan allocates nothing.
#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "cases.h"
#include "count_allocations.h"
#include "flashoptim/plan.h"
#include "flashoptim/runtime.h"
#include "tensor_state.h"

namespace flashoptim {
namespace {

using testing::Shape;
using testing::StepCase;
using testing::TensorState;

class Allocations : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!kCounting) GTEST_SKIP() << "the sanitizer has replaced the allocator";
  }
};

TEST_F(Allocations, AreCounted) {
  const std::uint64_t before = allocations.load();
  const auto number = std::make_unique<std::vector<int>>(100);
  EXPECT_GE(allocations.load() - before, 2U);
  EXPECT_EQ(number->size(), 100U);
}

void ExpectNoAllocations(const StepCase& step_case, Nonfinite policy) {
  std::vector<std::unique_ptr<TensorState>> tensors;
  std::vector<TensorState*> pointers;
  for (const Shape& shape : {Shape{300, 70, 0}, Shape{1, 5, 0}, Shape{0, 0, 0}, Shape{2, 64, 0}}) {
    tensors.push_back(std::make_unique<TensorState>(step_case, shape, tensors.size()));
    pointers.push_back(tensors.back().get());
    pointers.back()->FillGradient(1);
  }
  Plan plan = testing::PlanOf(pointers);
  Hyperparameters hyper = step_case.rule.hyper;
  hyper.nonfinite = policy;
  plan.SetHyperparameters(0, hyper);
  testing::SetGradients(plan, pointers);
  plan.Step();  // the first one may start threads
  const std::uint64_t before = allocations.load();
  for (int step = 2; step <= 101; ++step) {
    hyper.lr *= 0.999;
    plan.SetHyperparameters(0, hyper);
    for (std::size_t i = 0; i < pointers.size(); ++i) {
      plan.SetGradient(i, pointers[i]->CurrentGradient());
    }
    plan.Step();
  }
  EXPECT_EQ(allocations.load() - before, 0U) << step_case.Name();
}

TEST_F(Allocations, AHundredStepsMakeNone) {
  for (const int threads : {1, 3}) {
    SetCpuThreads(threads);
    std::size_t turn = 0;
    for (const StepCase& step_case : testing::ThinCases()) {
      if (turn++ % 17 != 0) continue;
      ExpectNoAllocations(step_case, Nonfinite::kPropagate);
      ExpectNoAllocations(step_case, Nonfinite::kSkip);
    }
  }
}

TEST_F(Allocations, NoTargetMakesAny) {
  SetCpuThreads(2);
  for (const std::string& target : CpuTargets()) {
    SetCpuTarget(target);
    ExpectNoAllocations(testing::ThinCases()[5], Nonfinite::kPropagate);
  }
}

}  // namespace
}  // namespace flashoptim

// How the work is divided changes no byte: threads, shards, batches of tensors.
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "cases.h"
#include "flashoptim/plan.h"
#include "flashoptim/runtime.h"
#include "sanitizers.h"
#include "tensor_state.h"

namespace flashoptim {
namespace {

using testing::Shape;
using testing::StepCase;
using testing::TensorState;

constexpr std::uint64_t kSeed = 77;

// Several chunks of 256 groups, the last one not full, and tails.
constexpr Shape kSeveralChunks = {700, 130, 3};

std::unique_ptr<TensorState> Whole(const StepCase& step_case, Shape shape) {
  auto tensor = std::make_unique<TensorState>(step_case, shape, kSeed);
  Plan plan = testing::PlanOf({tensor.get()});
  for (int step = 1; step <= shape.steps; ++step) {
    tensor->FillGradient(step);
    testing::SetGradients(plan, {tensor.get()});
    plan.Step();
  }
  return tensor;
}

TEST(Threads, CountChangesNothing) {
  std::size_t turn = 0;
  for (const StepCase& step_case : testing::ThinCases()) {
    if (turn++ % (testing::kSanitized ? 12 : 3) != 0) continue;
    SetCpuThreads(1);
    const auto alone = Whole(step_case, kSeveralChunks);
    for (const int threads : {2, 3, 7}) {
      SetCpuThreads(threads);
      const auto together = Whole(step_case, kSeveralChunks);
      ASSERT_EQ(together->DifferenceFrom(*alone), "") << threads << " threads";
      ASSERT_TRUE(together->GuardsAreIntact());
    }
  }
}

// Rows cut into shards of one tensor, each with a step count of its own and all in one plan.
void ExpectShardsAgree(const StepCase& step_case, Shape shape,
                       const std::vector<std::uint64_t>& row_counts) {
  const auto whole = Whole(step_case, shape);
  TensorState cut(step_case, shape, kSeed);
  std::vector<float> steps(row_counts.size(), 0.0F);
  std::vector<TensorBinding> bindings;
  std::vector<std::uint64_t> first_rows;
  std::uint64_t row = 0;
  for (std::size_t i = 0; i < row_counts.size(); ++i) {
    bindings.push_back(cut.Shard(row, row_counts[i], &steps[i]));
    first_rows.push_back(row);
    row += row_counts[i];
  }
  ASSERT_EQ(row, shape.rows);
  Plan plan(step_case.rule.rule, std::move(bindings), 1);
  plan.SetHyperparameters(0, step_case.rule.hyper);
  for (int step = 1; step <= shape.steps; ++step) {
    cut.FillGradient(step);
    for (std::size_t i = 0; i < row_counts.size(); ++i) {
      plan.SetGradient(i, cut.ShardGradient(first_rows[i]));
    }
    plan.Step();
  }
  for (const float count : steps) ASSERT_EQ(count, static_cast<float>(shape.steps));
  cut.step() = whole->step();
  ASSERT_EQ(cut.DifferenceFrom(*whole), "");
}

TEST(Shards, OfRowsAgreeWithTheWhole) {
  for (const StepCase& step_case : testing::ThinCases()) {
    ASSERT_NO_FATAL_FAILURE(ExpectShardsAgree(step_case, {9, 70, 5}, {1, 3, 0, 5}));
    ASSERT_NO_FATAL_FAILURE(ExpectShardsAgree(step_case, {6, 128, 5}, {4, 2}));
    ASSERT_NO_FATAL_FAILURE(ExpectShardsAgree(step_case, {40, 5, 5}, {13, 13, 14}));
  }
}

TEST(Batches, OfTensorsAgreeWithOneAtATime) {
  for (const StepCase& step_case : testing::ThinCases()) {
    const std::vector<Shape> shapes = testing::SmallShapes();
    std::vector<std::unique_ptr<TensorState>> batch;
    std::vector<std::unique_ptr<TensorState>> single;
    std::vector<TensorState*> pointers;
    std::vector<Plan> plans;
    for (std::size_t i = 0; i < shapes.size(); ++i) {
      batch.push_back(std::make_unique<TensorState>(step_case, shapes[i], kSeed + i));
      single.push_back(std::make_unique<TensorState>(step_case, shapes[i], kSeed + i));
      pointers.push_back(batch.back().get());
      plans.push_back(testing::PlanOf({single.back().get()}));
    }
    Plan plan = testing::PlanOf(pointers);
    for (int step = 1; step <= 5; ++step) {
      for (std::size_t i = 0; i < shapes.size(); ++i) {
        batch[i]->FillGradient(step);
        single[i]->CopyGradientFrom(*batch[i]);
        testing::SetGradients(plans[i], {single[i].get()});
        plans[i].Step();
      }
      testing::SetGradients(plan, pointers);
      plan.Step();
      for (std::size_t i = 0; i < shapes.size(); ++i) {
        ASSERT_EQ(batch[i]->DifferenceFrom(*single[i]), "") << "step " << step;
      }
    }
  }
}

// The random stream belongs to the tensor's key, not to its place among others.
TEST(Batches, OrderOfTensorsChangesNothing) {
  for (const StepCase& step_case : testing::ThinCases()) {
    const Shape shape = {5, 66, 0};
    TensorState a(step_case, shape, 1);
    TensorState b(step_case, shape, 2);
    TensorState a2(step_case, shape, 1);
    TensorState b2(step_case, shape, 2);
    Plan forward = testing::PlanOf({&a, &b});
    Plan backward = testing::PlanOf({&b2, &a2});
    for (int step = 1; step <= 3; ++step) {
      for (TensorState* tensor : {&a, &b, &a2, &b2}) tensor->FillGradient(step);
      testing::SetGradients(forward, {&a, &b});
      testing::SetGradients(backward, {&b2, &a2});
      forward.Step();
      backward.Step();
    }
    ASSERT_EQ(a2.DifferenceFrom(a), "");
    ASSERT_EQ(b2.DifferenceFrom(b), "");
  }
}

}  // namespace
}  // namespace flashoptim

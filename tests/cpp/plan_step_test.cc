// What one call of Step does to which tensors: policies for non-finite gradients, empty tensors,
// tensors without a gradient, step counts, parameter groups.
#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "cases.h"
#include "flashoptim/plan.h"
#include "one_weight_plan.h"
#include "tensor_state.h"

namespace flashoptim {
namespace {

using testing::Shape;
using testing::StepCase;
using testing::TensorState;

StepCase AdamwCase() {
  StepCase step_case;
  step_case.rule = testing::RuleCases()[3];
  step_case.codec = Codec::kRoot;
  step_case.weight = testing::WeightCases()[1];
  step_case.gradient_dtype = DType::kBFloat16;
  return step_case;
}

// Several tensors, and a copy of each that is not stepped.
class Tensors {
 public:
  Tensors(const StepCase& step_case, const std::vector<Shape>& shapes) {
    for (std::size_t i = 0; i < shapes.size(); ++i) {
      stepped_.push_back(std::make_unique<TensorState>(step_case, shapes[i], i));
      untouched_.push_back(std::make_unique<TensorState>(step_case, shapes[i], i));
      stepped_.back()->FillGradient(1);
    }
  }

  TensorState& operator[](std::size_t i) { return *stepped_[i]; }
  std::size_t size() const { return stepped_.size(); }

  Plan MakePlan(const Hyperparameters& hyper, std::vector<std::uint32_t> groups = {}) {
    std::vector<TensorBinding> bindings;
    for (std::size_t i = 0; i < size(); ++i) {
      bindings.push_back(stepped_[i]->Binding());
      bindings.back().name = "tensor" + std::to_string(i);
      if (!groups.empty()) bindings.back().parameter_group = groups[i];
    }
    Plan plan(stepped_.front()->step_case().rule.rule, std::move(bindings), groups.empty() ? 1 : 2);
    plan.SetHyperparameters(0, hyper);
    if (!groups.empty()) plan.SetHyperparameters(1, hyper);
    for (std::size_t i = 0; i < size(); ++i) plan.SetGradient(i, stepped_[i]->CurrentGradient());
    return plan;
  }

  bool IsUntouched(std::size_t i) const {
    return stepped_[i]->DifferenceFrom(*untouched_[i]).empty();
  }
  bool AreUntouched() const {
    for (std::size_t i = 0; i < size(); ++i) {
      if (!IsUntouched(i)) return false;
    }
    return true;
  }

 private:
  std::vector<std::unique_ptr<TensorState>> stepped_;
  std::vector<std::unique_ptr<TensorState>> untouched_;
};

Hyperparameters WithPolicy(Nonfinite policy) {
  Hyperparameters h = AdamwCase().rule.hyper;
  h.nonfinite = policy;
  return h;
}

void SetGradientElement(TensorState& tensor, std::uint64_t i, std::uint32_t image) {
  const std::size_t size = tensor.step_case().gradient_dtype == DType::kFloat32 ? 4 : 2;
  std::memcpy(tensor.buffer(testing::kGradient).data() + i * size, &image, size);
}

struct Mark {
  const char* name;
  DType dtype;
  std::uint32_t image;
};

constexpr Mark kMarks[] = {
    {"bf16_inf", DType::kBFloat16, 0x7f80U},      {"bf16_minus_inf", DType::kBFloat16, 0xff80U},
    {"bf16_nan", DType::kBFloat16, 0xffc1U},      {"fp16_inf", DType::kFloat16, 0x7c00U},
    {"fp16_minus_inf", DType::kFloat16, 0xfc00U}, {"fp16_nan", DType::kFloat16, 0x7c01U},
    {"fp32_inf", DType::kFloat32, 0x7f800000U},   {"fp32_minus_inf", DType::kFloat32, 0xff800000U},
    {"fp32_nan", DType::kFloat32, 0x7f800001U},
};

class NonfiniteGradient : public ::testing::TestWithParam<Mark> {
 protected:
  static StepCase Case() {
    StepCase step_case = AdamwCase();
    step_case.gradient_dtype = GetParam().dtype;
    return step_case;
  }
};

TEST_P(NonfiniteGradient, AsErrorWritesNothingAndNamesTheTensor) {
  // The last tensor has several chunks of work; the mark is its last element.
  std::vector<Shape> shapes(9, {3, 70, 0});
  shapes.push_back({300, 100, 0});
  Tensors tensors(Case(), shapes);
  SetGradientElement(tensors[9], tensors[9].elements() - 1, GetParam().image);
  Plan plan = tensors.MakePlan(WithPolicy(Nonfinite::kError));
  try {
    plan.Step();
    FAIL() << "no error";
  } catch (const std::runtime_error& error) {
    EXPECT_NE(std::string(error.what()).find("'tensor9'"), std::string::npos) << error.what();
  }
  EXPECT_TRUE(tensors.AreUntouched());
  for (std::size_t i = 0; i < tensors.size(); ++i) EXPECT_EQ(tensors[i].step(), 0.0F);
  // With the mark gone, the same plan steps all.
  SetGradientElement(tensors[9], tensors[9].elements() - 1, 0);
  EXPECT_EQ(plan.Step(), 0U);
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    EXPECT_FALSE(tensors.IsUntouched(i));
    EXPECT_EQ(tensors[i].step(), 1.0F);
  }
}

TEST_P(NonfiniteGradient, IsFoundInEveryPlace) {
  const Shape shape = {2, 130, 0};
  for (std::uint64_t i = 0; i < shape.rows * shape.row_length; ++i) {
    Tensors tensors(Case(), {shape});
    SetGradientElement(tensors[0], i, GetParam().image);
    Plan plan = tensors.MakePlan(WithPolicy(Nonfinite::kSkip));
    ASSERT_EQ(plan.Step(), 1U) << "element " << i;
    ASSERT_TRUE(tensors.AreUntouched());
  }
}

// The first and the last element of each group, and so of each piece of parallel work.
TEST_P(NonfiniteGradient, IsFoundAtTheEndsOfEveryGroup) {
  const Shape shape = {300, 130, 0};
  Tensors tensors(Case(), {shape});
  Plan plan = tensors.MakePlan(WithPolicy(Nonfinite::kSkip));
  for (std::uint64_t row = 0; row < shape.rows; ++row) {
    for (const std::uint64_t column : {0U, 63U, 64U, 127U, 128U, 129U}) {
      const std::uint64_t i = row * shape.row_length + column;
      SetGradientElement(tensors[0], i, GetParam().image);
      plan.SetGradient(0, tensors[0].CurrentGradient());
      ASSERT_EQ(plan.Step(), 1U) << "element " << i;
      SetGradientElement(tensors[0], i, 0);
    }
  }
  EXPECT_TRUE(tensors.AreUntouched());
}

TEST_P(NonfiniteGradient, AsSkipLeavesTheTensorAndCounts) {
  Tensors tensors(Case(), {{1, 64, 0}, {3, 70, 0}, {1, 5, 0}, {2, 65, 0}});
  SetGradientElement(tensors[1], 100, GetParam().image);
  SetGradientElement(tensors[3], 64, GetParam().image);
  Plan plan = tensors.MakePlan(WithPolicy(Nonfinite::kSkip));
  EXPECT_EQ(plan.Step(), 2U);
  for (const std::size_t i : {1U, 3U}) {
    EXPECT_TRUE(tensors.IsUntouched(i));
    EXPECT_EQ(tensors[i].step(), 0.0F);
  }
  for (const std::size_t i : {0U, 2U}) {
    EXPECT_FALSE(tensors.IsUntouched(i));
    EXPECT_EQ(tensors[i].step(), 1.0F);
  }
  // The next gradients are finite: the skipped tensors take their first step.
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    tensors[i].FillGradient(2);
    plan.SetGradient(i, tensors[i].CurrentGradient());
  }
  EXPECT_EQ(plan.Step(), 0U);
  EXPECT_EQ(tensors[1].step(), 1.0F);
  EXPECT_EQ(tensors[0].step(), 2.0F);
}

TEST_P(NonfiniteGradient, AsPropagateTouchesOneElementOnly) {
  const Shape shape = {1, 64, 0};
  Tensors tensors(Case(), {shape, shape});
  SetGradientElement(tensors[0], 7, GetParam().image);
  Plan plan = tensors.MakePlan(WithPolicy(Nonfinite::kPropagate));
  EXPECT_EQ(plan.Step(), 0U);
  const auto* weights = tensors[0].buffer(testing::kWeight).As<std::uint16_t>();
  for (std::uint64_t i = 0; i < shape.row_length; ++i) {
    EXPECT_EQ((weights[i] & 0x7f80U) == 0x7f80U, i == 7) << "element " << i;
  }
  EXPECT_EQ(tensors[0].buffer(testing::kFirst).As<std::int8_t>()[7], -128);
  EXPECT_EQ(tensors[0].buffer(testing::kSecond).As<std::uint8_t>()[7], 0);
}

INSTANTIATE_TEST_SUITE_P(Marks, NonfiniteGradient, ::testing::ValuesIn(kMarks),
                         [](const auto& mark) { return std::string(mark.param.name); });

TEST(PlanStep, PoliciesAreThoseOfTheParameterGroup) {
  Tensors tensors(AdamwCase(), {{1, 64, 0}, {1, 64, 0}});
  for (std::size_t i = 0; i < 2; ++i) SetGradientElement(tensors[i], 3, 0x7f80U);
  Plan plan = tensors.MakePlan(WithPolicy(Nonfinite::kSkip), {0, 1});
  plan.SetHyperparameters(1, WithPolicy(Nonfinite::kError));
  EXPECT_THROW(plan.Step(), std::runtime_error);
  EXPECT_TRUE(tensors.AreUntouched());
  // The error came before the skip had an effect: both are still there to be looked at.
  plan.SetHyperparameters(1, WithPolicy(Nonfinite::kPropagate));
  EXPECT_EQ(plan.Step(), 1U);
  EXPECT_TRUE(tensors.IsUntouched(0));
  EXPECT_FALSE(tensors.IsUntouched(1));
}

TEST(PlanStep, EmptyTensorsInEverySlot) {
  const Shape full = {3, 70, 0};
  for (const Shape& empty : {Shape{0, 0, 0}, Shape{0, 70, 0}, Shape{3, 0, 0}}) {
    for (std::size_t slot = 0; slot < 4; ++slot) {
      std::vector<Shape> shapes(3, full);
      shapes.insert(shapes.begin() + static_cast<std::ptrdiff_t>(slot), empty);
      for (const Nonfinite policy : {Nonfinite::kPropagate, Nonfinite::kError}) {
        Tensors tensors(AdamwCase(), shapes);
        Plan plan = tensors.MakePlan(WithPolicy(policy));
        EXPECT_EQ(plan.Step(), 0U);
        for (std::size_t i = 0; i < shapes.size(); ++i) {
          EXPECT_EQ(tensors.IsUntouched(i), i == slot);
        }
      }
    }
  }
  Plan nothing(Rule::kAdam, {}, 0);
  EXPECT_EQ(nothing.Step(), 0U);
}

TEST(PlanStep, TensorsWithoutGradientAreLeftAlone) {
  Tensors tensors(AdamwCase(), {{3, 70, 0}, {3, 70, 0}, {3, 70, 0}});
  Plan plan = tensors.MakePlan(WithPolicy(Nonfinite::kError));
  plan.SetGradient(1, {});
  plan.Step();
  EXPECT_TRUE(tensors.IsUntouched(1));
  EXPECT_EQ(tensors[0].step(), 1.0F);
  EXPECT_EQ(tensors[1].step(), 0.0F);
}

// A tensor that missed steps has the bias corrections and the random stream of its own count.
TEST(PlanStep, StepCountsArePerTensor) {
  StepCase step_case = AdamwCase();
  step_case.rule.hyper.stochastic_rounding = true;
  const Shape shape = {3, 70, 0};
  Tensors tensors(step_case, {shape, shape});
  Plan plan = tensors.MakePlan(step_case.rule.hyper);
  plan.SetGradient(1, {});
  plan.Step();
  plan.SetGradient(1, tensors[1].CurrentGradient());
  plan.Step();

  TensorState late(step_case, shape, 1);
  Plan alone = testing::PlanOf({&late});
  late.FillGradient(1);
  testing::SetGradients(alone, {&late});
  alone.Step();
  EXPECT_EQ(tensors[1].DifferenceFrom(late), "");
  EXPECT_EQ(tensors[0].step(), 2.0F);
}

TEST(PlanStep, HyperparametersAreThoseOfTheParameterGroup) {
  float w[2] = {1.0F, 1.0F};
  float steps[2] = {};
  const float g = 1.0F;
  std::vector<TensorBinding> bindings(2);
  for (std::uint32_t i = 0; i < 2; ++i) {
    bindings[i].name = "w";
    bindings[i].weight = &w[i];
    bindings[i].rows = 1;
    bindings[i].row_length = 1;
    bindings[i].step = &steps[i];
    bindings[i].parameter_group = i;
  }
  Plan plan(Rule::kSgd, bindings, 2);
  Hyperparameters h;
  for (std::uint32_t i = 0; i < 2; ++i) {
    h.lr = 0.25 * (i + 1.0);
    plan.SetHyperparameters(i, h);
    plan.SetGradient(i, {&g, DType::kFloat32});
  }
  plan.Step();
  EXPECT_EQ(w[0], 0.75F);
  EXPECT_EQ(w[1], 0.5F);
}

TEST(PlanStep, GradientsAreDividedByTheScaleUntilItChanges) {
  float w = 1.0F;
  float step = 0.0F;
  const float g = 8.0F;
  Plan plan = OneWeightPlan(&w, &step);
  Hyperparameters h;
  h.lr = 0.25;
  plan.SetHyperparameters(0, h);
  plan.SetGradient(0, {&g, DType::kFloat32});
  plan.SetGradientScale(16.0F);
  for (const float expected : {0.875F, 0.75F}) {
    plan.Step();
    EXPECT_EQ(w, expected);
  }
  plan.SetGradientScale(1.0F);
  plan.Step();
  EXPECT_EQ(w, -1.25F);
}

// docs/format.md, 8.2: without momentum D is G, whatever the dampening, and no moment is updated.
TEST(PlanStep, MomentumZeroLeavesTheBufferAlone) {
  float w[4] = {1.0F, 2.0F, 3.0F, 4.0F};
  float buffer[4] = {5.0F, 6.0F, 7.0F, std::numeric_limits<float>::infinity()};
  const float g[4] = {1.0F, 1.0F, -1.0F, 1.0F};
  float step = 3.0F;
  TensorBinding binding;
  binding.name = "w";
  binding.weight = w;
  binding.first_moment = buffer;
  binding.rows = 1;
  binding.row_length = 4;
  binding.step = &step;
  Plan plan(Rule::kSgd, {binding}, 1);
  Hyperparameters h;
  h.lr = 0.5;
  h.dampening = 0.25;
  plan.SetHyperparameters(0, h);
  plan.SetGradient(0, {g, DType::kFloat32});
  plan.Step();
  EXPECT_EQ(w[0], 0.5F);
  EXPECT_EQ(w[1], 1.5F);
  EXPECT_EQ(w[2], 3.5F);
  EXPECT_EQ(w[3], 3.5F);
  EXPECT_EQ(buffer[0], 5.0F);
  EXPECT_EQ(step, 4.0F);
}

TEST(PlanStep, PlansCanBeMoved) {
  Tensors tensors(AdamwCase(), {{3, 70, 0}});
  Plan first = tensors.MakePlan(WithPolicy(Nonfinite::kError));
  Plan second = std::move(first);
  second.Step();
  EXPECT_EQ(tensors[0].step(), 1.0F);
}

}  // namespace
}  // namespace flashoptim

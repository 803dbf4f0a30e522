// What a plan refuses, and that its messages name the tensor and the value.
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <stdexcept>
#include <string>

#include "flashoptim/plan.h"
#include "flashoptim/runtime.h"
#include "one_weight_plan.h"

namespace flashoptim {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInfinity = std::numeric_limits<double>::infinity();

// The message of the std::invalid_argument that `action` throws.
std::string Refusal(const std::function<void()>& action) {
  try {
    action();
  } catch (const std::invalid_argument& error) {
    return error.what();
  }
  return "nothing was refused";
}

void ExpectMentions(const std::string& message, std::initializer_list<const char*> words) {
  for (const char* word : words) {
    EXPECT_NE(message.find(word), std::string::npos) << "'" << message << "' lacks " << word;
  }
}

// Storage for one group of everything.
struct Storage {
  float floats[8][64] = {};
  std::uint8_t codes[4][64] = {};
  float step = 0.0F;
};

TensorBinding AdamBinding(Storage& storage) {
  TensorBinding binding;
  binding.name = "layer.weight";
  binding.weight = storage.floats[0];
  binding.weight_dtype = DType::kBFloat16;
  binding.correction_bits = 8;
  binding.correction = storage.codes[0];
  binding.codec = Codec::kRoot;
  binding.first_moment = storage.codes[1];
  binding.first_moment_scale = storage.floats[1];
  binding.second_moment = storage.codes[2];
  binding.second_moment_scale = storage.floats[2];
  binding.rows = 1;
  binding.row_length = 64;
  binding.step = &storage.step;
  return binding;
}

struct BadBinding {
  const char* name;
  void (*spoil)(TensorBinding&, Storage&);
  const char* complaint;
};

const BadBinding kBadBindings[] = {
    {"parameter_group", [](auto& b, auto&) { b.parameter_group = 3; }, "parameter group 3 of 1"},
    {"step", [](auto& b, auto&) { b.step = nullptr; }, "step count is missing"},
    {"step_on_device", [](auto& b, auto&) { b.step_on_device = true; }, "on a GPU"},
    {"weight", [](auto& b, auto&) { b.weight = nullptr; }, "weight is missing"},
    {"correction_bits", [](auto& b, auto&) { b.correction_bits = 7; }, "not 7"},
    {"fp32_correction", [](auto& b, auto&) { b.weight_dtype = DType::kFloat32; }, "fp32"},
    {"missing_correction", [](auto& b, auto&) { b.correction = nullptr; }, "correction is missing"},
    {"unused_correction", [](auto& b, auto&) { b.correction_bits = 0; }, "correction is not used"},
    {"first", [](auto& b, auto&) { b.first_moment = nullptr; }, "first moment is missing"},
    {"first_scale", [](auto& b, auto&) { b.first_moment_scale = nullptr; },
     "scale of the first moment is missing"},
    {"second", [](auto& b, auto&) { b.second_moment = nullptr; }, "second moment is missing"},
    {"second_scale", [](auto& b, auto&) { b.second_moment_scale = nullptr; },
     "scale of the second moment is missing"},
    {"maximum_scale", [](auto& b, auto& s) { b.maximum = s.codes[3]; },
     "scale of the maximum of the second moment is missing"},
    {"maximum", [](auto& b, auto& s) { b.maximum_scale = s.floats[3]; }, "maximum"},
    {"scale_without_codec", [](auto& b, auto&) { b.codec = Codec::kNone; }, "must be null"},
};

class BadBindings : public ::testing::TestWithParam<BadBinding> {};

TEST_P(BadBindings, AreRefusedByName) {
  Storage storage;
  const TensorBinding good = AdamBinding(storage);
  TensorBinding bad = good;
  bad.name = "the.bad.one";
  GetParam().spoil(bad, storage);
  const std::string message = Refusal([&] { Plan(Rule::kAdam, {good, bad, good}, 1); });
  ExpectMentions(message, {"'the.bad.one'", GetParam().complaint});
}

INSTANTIATE_TEST_SUITE_P(Faults, BadBindings, ::testing::ValuesIn(kBadBindings),
                         [](const auto& fault) { return std::string(fault.param.name); });

TEST(PlanErrors, StateThatTheRuleDoesNotHave) {
  Storage storage;
  TensorBinding binding = AdamBinding(storage);
  ExpectMentions(Refusal([&] { Plan(Rule::kLion, {binding}, 1); }),
                 {"'layer.weight'", "second moment is not used by the rule"});
  ExpectMentions(Refusal([&] { Plan(Rule::kSgd, {binding}, 1); }), {"second moment is not used"});
  binding.second_moment = nullptr;
  binding.second_moment_scale = nullptr;
  binding.maximum = storage.codes[3];
  binding.maximum_scale = storage.floats[3];
  ExpectMentions(Refusal([&] { Plan(Rule::kLion, {binding}, 1); }), {"maximum", "not used"});
}

TEST(PlanErrors, MomentumWithoutABufferNamesTheTensor) {
  Storage storage;
  TensorBinding binding;
  binding.name = "no.buffer";
  binding.weight = storage.floats[0];
  binding.rows = 1;
  binding.row_length = 64;
  binding.step = &storage.step;
  Plan plan(Rule::kSgd, {binding}, 1);
  Hyperparameters h;
  h.momentum = 0.9;
  ExpectMentions(Refusal([&] { plan.SetHyperparameters(0, h); }),
                 {"'no.buffer'", "momentum is 0.9", "no momentum buffer"});
}

TEST(PlanErrors, GpuTensorsWithoutAGpu) {
  if (CudaAvailable()) GTEST_SKIP() << "this machine has a GPU: " << CudaStatus();
  Storage storage;
  TensorBinding binding = AdamBinding(storage);
  binding.device_type = DeviceType::kCuda;
  try {
    const Plan plan(Rule::kAdam, {binding}, 1);
    FAIL() << "nothing was refused: " << plan.size();
  } catch (const std::exception& error) {
    EXPECT_NE(std::string(error.what()), "");
  }
}

TEST(PlanErrors, IndicesOutOfRange) {
  Storage storage;
  Plan plan(Rule::kAdam, {AdamBinding(storage)}, 1);
  EXPECT_EQ(plan.size(), 1U);
  ExpectMentions(Refusal([&] { plan.SetGradient(1, {}); }), {"tensor 1 of 1"});
  ExpectMentions(Refusal([&] { plan.SetHyperparameters(1, {}); }), {"parameter group 1 of 1"});
}

TEST(PlanErrors, GradientScalesThatDivideByNothing) {
  Plan plan(Rule::kAdam, {}, 1);
  EXPECT_NO_THROW(plan.SetGradientScale(65536.0F));
  for (const double bad : {0.0, -0.5, kInfinity, kNan}) {
    const auto scale = static_cast<float>(bad);
    ExpectMentions(Refusal([&] { plan.SetGradientScale(scale); }),
                   {"gradient scale", std::to_string(scale).c_str()});
  }
}

struct BadHyperparameter {
  const char* name;
  Rule rule;
  void (*spoil)(Hyperparameters&);
  const char* what;
  const char* value;
};

const BadHyperparameter kBadHyperparameters[] = {
    {"lr_negative", Rule::kAdam, [](auto& h) { h.lr = -0.25; }, "lr", "-0.25"},
    {"lr_nan", Rule::kSgd, [](auto& h) { h.lr = kNan; }, "lr", "nan"},
    {"initial_lr_negative", Rule::kAdam, [](auto& h) { h.initial_lr = -0.5; }, "initial_lr",
     "-0.5"},
    {"initial_lr_nan", Rule::kSgd, [](auto& h) { h.initial_lr = kNan; }, "initial_lr", "nan"},
    {"lr_infinite", Rule::kLion, [](auto& h) { h.lr = kInfinity; }, "lr", "inf"},
    {"weight_decay", Rule::kSgd, [](auto& h) { h.weight_decay = -1.5; }, "weight_decay", "-1.5"},
    {"weight_decay_nan", Rule::kLion, [](auto& h) { h.weight_decay = kNan; }, "weight_decay",
     "nan"},
    {"momentum", Rule::kSgd, [](auto& h) { h.momentum = -0.5; }, "momentum", "-0.5"},
    {"dampening", Rule::kSgd, [](auto& h) { h.dampening = kInfinity; }, "dampening", "inf"},
    {"nesterov_alone", Rule::kSgd, [](auto& h) { h.nesterov = true; }, "nesterov", "momentum 0"},
    {"nesterov_dampened", Rule::kSgd,
     [](auto& h) {
       h.nesterov = true;
       h.momentum = 0.9;
       h.dampening = 0.125;
     },
     "nesterov", "dampening 0.125"},
    {"beta1_one", Rule::kAdam, [](auto& h) { h.beta1 = 1.0; }, "betas[0]", "not 1"},
    {"beta1_negative", Rule::kLion, [](auto& h) { h.beta1 = -0.5; }, "betas[0]", "-0.5"},
    {"beta2_one", Rule::kLion, [](auto& h) { h.beta2 = 1.0; }, "betas[1]", "not 1"},
    {"beta2_nan", Rule::kAdam, [](auto& h) { h.beta2 = kNan; }, "betas[1]", "nan"},
    {"eps_negative", Rule::kAdam, [](auto& h) { h.eps = -1e-8; }, "eps", "-1e-08"},
    {"eps_huge", Rule::kAdam, [](auto& h) { h.eps = 0x1p100; }, "eps", "1.26765e+30"},
};

class BadHyperparameters : public ::testing::TestWithParam<BadHyperparameter> {};

TEST_P(BadHyperparameters, AreRefusedByNameAndValue) {
  Hyperparameters h;
  CheckHyperparameters(GetParam().rule, h);  // the defaults are fine
  GetParam().spoil(h);
  const std::string message = Refusal([&] { CheckHyperparameters(GetParam().rule, h); });
  ExpectMentions(message, {GetParam().what, GetParam().value});
}

INSTANTIATE_TEST_SUITE_P(Faults, BadHyperparameters, ::testing::ValuesIn(kBadHyperparameters),
                         [](const auto& fault) { return std::string(fault.param.name); });

TEST(PlanErrors, RefusedHyperparametersLeaveTheOldOnes) {
  float w = 1.0F;
  float step = 0.0F;
  const float g = 1.0F;
  Plan plan = OneWeightPlan(&w, &step);
  Hyperparameters h;
  h.lr = 0.25;
  plan.SetHyperparameters(0, h);
  h.lr = -1.0;
  EXPECT_THROW(plan.SetHyperparameters(0, h), std::invalid_argument);
  plan.SetGradient(0, {&g, DType::kFloat32});
  plan.Step();
  EXPECT_EQ(w, 0.75F);
}

// What a rule does not read is not checked.
TEST(PlanErrors, OtherRulesArgumentsAreIgnored) {
  Hyperparameters h;
  h.momentum = -1.0;
  h.nesterov = true;
  EXPECT_NO_THROW(CheckHyperparameters(Rule::kAdam, h));
  h.eps = -1.0;
  EXPECT_NO_THROW(CheckHyperparameters(Rule::kLion, h));
}

}  // namespace
}  // namespace flashoptim

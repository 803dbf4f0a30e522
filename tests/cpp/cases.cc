#include "cases.h"

#include <array>
#include <cstddef>
#include <string>

#include "flashoptim/state_file.h"

namespace flashoptim::testing {
namespace {

constexpr std::array kCodecs = {Codec::kRoot, Codec::kSoftsign, Codec::kNone};
constexpr std::array kAllValues = {Values::kOrdinary, Values::kNonfinite, Values::kWild};

RuleCase Adam(const std::string& name, WeightDecay kind, double weight_decay) {
  RuleCase rule;
  rule.name = name;
  rule.rule = Rule::kAdam;
  rule.second = true;
  rule.hyper.lr = 3e-3;
  rule.hyper.initial_lr = 7e-3;
  rule.hyper.weight_decay = weight_decay;
  rule.hyper.weight_decay_kind = kind;
  return rule;
}

RuleCase Sgd(const std::string& name, WeightDecay kind, double weight_decay, double momentum) {
  RuleCase rule;
  rule.name = name;
  rule.rule = Rule::kSgd;
  rule.first = momentum != 0.0;
  rule.hyper.lr = 0.02;
  rule.hyper.initial_lr = 0.05;
  rule.hyper.weight_decay = weight_decay;
  rule.hyper.weight_decay_kind = kind;
  rule.hyper.momentum = momentum;
  return rule;
}

RuleCase Lion(const std::string& name, WeightDecay kind, double weight_decay) {
  RuleCase rule;
  rule.name = name;
  rule.rule = Rule::kLion;
  rule.hyper.lr = 1e-3;
  rule.hyper.initial_lr = 3e-3;
  rule.hyper.beta2 = 0.99;
  rule.hyper.weight_decay = weight_decay;
  rule.hyper.weight_decay_kind = kind;
  return rule;
}

std::vector<RuleCase> MakeRuleCases() {
  using enum WeightDecay;
  std::vector<RuleCase> rules = {
      Adam("adam", kCoupled, 0.01),
      Adam("adam_no_eps", kCoupled, 0.0),
      Adam("adam_amsgrad", kCoupled, 0.02),
      Adam("adamw", kDecoupled, 0.1),
      Adam("adamw_amsgrad_maximize", kDecoupled, 0.1),
      Adam("adamw_fully_decoupled", kFullyDecoupled, 0.02),
      Sgd("sgd", kCoupled, 0.0, 0.0),
      Sgd("sgd_decay_maximize", kCoupled, 0.05, 0.0),
      Sgd("sgd_momentum", kCoupled, 0.01, 0.9),
      Sgd("sgd_nesterov", kCoupled, 0.01, 0.95),
      Sgd("sgdw_dampening", kDecoupled, 0.1, 0.9),
      Sgd("sgdw_nesterov", kFullyDecoupled, 0.01, 0.8),
      Lion("lion", kDecoupled, 0.0),
      Lion("lion_maximize", kDecoupled, 0.3),
      Lion("lion_fully_decoupled", kFullyDecoupled, 0.01),
  };
  for (RuleCase& rule : rules) {
    const auto has = [&](const char* word) { return rule.name.find(word) != std::string::npos; };
    rule.maximum = has("amsgrad");
    rule.hyper.maximize = has("maximize");
    rule.hyper.nesterov = has("nesterov");
    if (has("no_eps")) rule.hyper.eps = 0.0;
    // A small beta2 lets the second moment fall below its maximum within a few steps.
    if (rule.maximum) rule.hyper.beta2 = 0.8;
    if (has("dampening")) rule.hyper.dampening = 0.3;
    rule.hyper.seed = 0x9e3779b97f4a7c15U;
  }
  return rules;
}

const char* Name(DType dtype) {
  switch (dtype) {
    case DType::kBFloat16:
      return "bf16";
    case DType::kFloat16:
      return "fp16";
    case DType::kFloat32:
      break;
  }
  return "fp32";
}

const char* Name(Values values) {
  switch (values) {
    case Values::kOrdinary:
      return "ordinary";
    case Values::kNonfinite:
      return "nonfinite";
    case Values::kWild:
      break;
  }
  return "wild";
}

}  // namespace

std::string StepCase::Name() const {
  return rule.name + "/" + std::string(NameOf(codec)) + "/" + weight.name +
         (rule.hyper.stochastic_rounding ? "-stochastic" : "") + "/" +
         testing::Name(gradient_dtype) + "-gradient/" + testing::Name(values);
}

const std::vector<RuleCase>& RuleCases() {
  static const std::vector<RuleCase> rules = MakeRuleCases();
  return rules;
}

const std::vector<WeightCase>& WeightCases() {
  static const std::vector<WeightCase> weights = {
      {"bf16", DType::kBFloat16, 0},     {"bf16+8", DType::kBFloat16, 8},
      {"bf16+16", DType::kBFloat16, 16}, {"fp16", DType::kFloat16, 0},
      {"fp16+8", DType::kFloat16, 8},    {"fp16+16", DType::kFloat16, 16},
      {"fp32", DType::kFloat32, 0},
  };
  return weights;
}

std::vector<StepCase> AllCases(const RuleCase& rule) {
  std::vector<StepCase> cases;
  const bool keeps_moments = rule.first || rule.second;
  for (const Codec codec : kCodecs) {
    if (!keeps_moments && codec != Codec::kNone) continue;
    for (const WeightCase& weight : WeightCases()) {
      for (const DType gradient : {DType::kBFloat16, DType::kFloat16, DType::kFloat32}) {
        for (const bool stochastic : {false, true}) {
          for (const Values values : kAllValues) {
            StepCase step_case = {rule, codec, weight, gradient, values};
            step_case.rule.hyper.stochastic_rounding = stochastic;
            cases.push_back(step_case);
          }
        }
      }
    }
  }
  return cases;
}

std::vector<StepCase> ThinCases() {
  std::vector<StepCase> thin;
  std::size_t turn = 0;
  for (const RuleCase& rule : RuleCases()) {
    const std::vector<StepCase> all = AllCases(rule);
    // Prime to the lengths of the columns, and small enough that each column runs through all its
    // values, which targets_conformance_test.cc checks.
    constexpr std::size_t kStep = 31;
    for (std::size_t i = turn++ % kStep; i < all.size(); i += kStep) thin.push_back(all[i]);
  }
  return thin;
}

std::vector<Shape> SmallShapes() {
  return {{0, 0, 200},  {1, 1, 200},   {1, 63, 200}, {1, 64, 200},
          {1, 65, 200}, {1, 200, 200}, {3, 70, 200}, {5, 4, 200}};
}

std::vector<Shape> LargeShapes() {
  return {{1, 4095, 12}, {65, 63, 12}, {1024, 1024, 2}, {1 << 14, 65, 2}, {1, (1 << 20) + 1, 2}};
}

}  // namespace flashoptim::testing

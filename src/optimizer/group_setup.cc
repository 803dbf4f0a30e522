#include "optimizer/group_setup.h"

#include <algorithm>
#include <array>
#include <stdexcept>
#include <string>
#include <type_traits>

#include "optimizer/validate.h"

namespace flashoptim {
namespace {

constexpr std::array<MomentSpec, 1> kMomentum{
    {{"momentum_buffer", StateKind::kFirstMoment, StateKind::kFirstScale}}};
// Lion keeps the first of them, Adam two, and amsgrad all.
constexpr std::array<MomentSpec, 3> kAverages{
    {{"exp_avg", StateKind::kFirstMoment, StateKind::kFirstScale},
     {"exp_avg_sq", StateKind::kSecondMoment, StateKind::kSecondScale},
     {"max_exp_avg_sq", StateKind::kMaximum, StateKind::kMaximumScale}}};

template <class T>
concept HasDecoupledDecay = requires(T options) {
  options.decouple_lr;
};

template <class T>
void ReadDecay(const T& options, Hyperparameters& h) {
  h.weight_decay = options.weight_decay;
  h.initial_lr = options.initial_lr.value_or(options.lr);
  if constexpr (HasDecoupledDecay<T>) {
    h.weight_decay_kind =
        options.decouple_lr ? WeightDecay::kFullyDecoupled : WeightDecay::kDecoupled;
  }
}

template <class T>
void ReadRule(const T& options, GroupSetup& setup) {
  Hyperparameters& h = setup.hyperparameters;
  if constexpr (std::is_same_v<T, SgdOptions> || std::is_same_v<T, SgdwOptions>) {
    setup.rule = Rule::kSgd;
    h.momentum = options.momentum;
    h.dampening = options.dampening;
    h.nesterov = options.nesterov;
    if (options.momentum != 0.0) setup.moments = kMomentum;
  } else {
    h.beta1 = options.beta1;
    h.beta2 = options.beta2;
    if constexpr (std::is_same_v<T, LionOptions>) {
      setup.rule = Rule::kLion;
      setup.moments = std::span(kAverages).first(1);
    } else {
      setup.rule = Rule::kAdam;
      h.eps = options.eps;
      setup.moments = std::span(kAverages).first(options.amsgrad ? 3 : 2);
    }
  }
}

void ReadStorage(const StorageOptions& storage, const std::string& whose, GroupSetup& setup) {
  if (storage.master_weight_bits != 16 && storage.master_weight_bits != 24 &&
      storage.master_weight_bits != 32) {
    throw std::invalid_argument(whose + "master_weight_bits must be 16, 24 or 32, not " +
                                std::to_string(storage.master_weight_bits));
  }
  setup.codec = storage.quantize ? storage.codec : Codec::kNone;
  setup.master_weight_bits = storage.master_weight_bits;
  setup.hyperparameters.stochastic_rounding = storage.stochastic_rounding;
  setup.hyperparameters.nonfinite = storage.nonfinite;
  setup.hyperparameters.seed = storage.seed;
}

}  // namespace

bool GroupSetup::SameState(const GroupSetup& other) const {
  return rule == other.rule && codec == other.codec &&
         master_weight_bits == other.master_weight_bits &&
         std::ranges::equal(moments, other.moments);
}

GroupSetup SetupOf(const Options& options, const std::string& whose) {
  return std::visit(
      [&whose](const auto& chosen) {
        GroupSetup setup;
        setup.hyperparameters.lr = chosen.lr;
        setup.hyperparameters.maximize = chosen.maximize;
        ReadDecay(chosen, setup.hyperparameters);
        ReadRule(chosen, setup);
        ReadStorage(chosen.storage, whose, setup);
        CheckHyperparametersOf(whose, setup.rule, setup.hyperparameters);
        return setup;
      },
      options);
}

std::string NameOf(const Options& options) {
  static constexpr const char* kNames[] = {"SGD", "SGDW", "Adam", "AdamW", "Lion"};
  return kNames[options.index()];
}

double LearningRate(const Options& options) {
  return std::visit([](const auto& chosen) { return chosen.lr; }, options);
}

void SetLearningRate(Options& options, double lr) {
  std::visit([lr](auto& chosen) { chosen.lr = lr; }, options);
}

void FixInitialLearningRate(Options& options, double lr) {
  std::visit([lr](auto& chosen) { chosen.initial_lr = chosen.initial_lr.value_or(lr); }, options);
}

}  // namespace flashoptim

#include "optimizer/scalars.h"

#include <cmath>

#include "cpu/scalar.h"

namespace flashoptim {
namespace {

float DecayFactor(const Hyperparameters& h) {
  switch (h.weight_decay_kind) {
    case WeightDecay::kCoupled:
      return 1.0F;
    case WeightDecay::kDecoupled:
      return static_cast<float>(1.0 - h.lr * h.weight_decay);
    case WeightDecay::kFullyDecoupled:
      // A scheduler that starts at lr 0 gives an initial_lr of 0; then there is no decay.
      return h.initial_lr == 0.0 ? 1.0F
                                 : static_cast<float>(1.0 - h.lr / h.initial_lr * h.weight_decay);
  }
  return 1.0F;
}

}  // namespace

core::StepScalars MakeScalars(Rule rule, const Hyperparameters& h, std::uint64_t step) {
  core::StepScalars s;
  s.gradient_multiplier = h.maximize ? -1.0F : 1.0F;
  s.coupled_decay =
      h.weight_decay_kind == WeightDecay::kCoupled ? static_cast<float>(h.weight_decay) : 0.0F;
  s.decay = DecayFactor(h);
  s.step_size = static_cast<float>(h.lr);
  switch (rule) {
    case Rule::kSgd:
      s.first_decay = static_cast<float>(h.momentum);
      s.first_rate = step == 1 ? 1.0F : static_cast<float>(1.0 - h.dampening);
      break;
    case Rule::kAdam: {
      const auto t = static_cast<double>(step);
      s.step_size = static_cast<float>(h.lr / (1.0 - std::pow(h.beta1, t)));
      s.inverse_sqrt_bias_correction =
          static_cast<float>(1.0 / std::sqrt(1.0 - std::pow(h.beta2, t)));
      s.eps = static_cast<float>(h.eps);
      [[fallthrough]];
    }
    case Rule::kLion:
      s.first_decay = static_cast<float>(h.beta1);
      s.first_rate = static_cast<float>(1.0 - h.beta1);
      s.second_decay = static_cast<float>(h.beta2);
      s.second_rate = static_cast<float>(1.0 - h.beta2);
      break;
  }
  return s;
}

void MakeStreamSeeds(std::uint64_t seed, std::uint64_t key, std::uint64_t step,
                     std::uint32_t (&seeds)[4]) {
  std::uint32_t purpose = 0;
  for (std::uint32_t& stream_seed : seeds) {
    stream_seed = ++purpose;
    for (const std::uint64_t word : {seed, key, step}) {
      for (const int shift : {0, 32}) {
        stream_seed =
            scalar::FoldSeed<scalar::Lanes>(stream_seed, static_cast<std::uint32_t>(word >> shift));
      }
    }
  }
}

}  // namespace flashoptim

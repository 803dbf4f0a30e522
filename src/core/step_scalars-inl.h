// Scalars and stream seeds of a tensor-step (docs/format.md, sections 3 and 8): computed in
// binary64 and rounded once, on the host, or on a GPU where the step must not depend on the host.
// Included by core/formulas-inl.h.

// Section 8.1: a power by squaring, the same on every machine, which library functions are not.
FLASHOPTIM_FN double PowerBySquaring(double base, uint64_t exponent) {
  double result = 1.0;
  for (; exponent != 0; exponent >>= 1) {
    if ((exponent & 1U) != 0) result *= base;
    base *= base;
  }
  return result;
}

template <class Hyper>
FLASHOPTIM_FN float DecayFactor(const Hyper& h) {
  if (h.weight_decay_kind == WeightDecay::kCoupled) return 1.0F;
  double factor = h.lr;
  if (h.weight_decay_kind == WeightDecay::kFullyDecoupled) {
    // A scheduler that starts at lr 0 gives an initial_lr of 0; then there is no decay.
    factor = h.initial_lr == 0.0 ? 0.0 : h.lr / h.initial_lr;
  }
  return static_cast<float>(1.0 - factor * h.weight_decay);
}

// The scalars of step `step`, 1 for a tensor's first.
template <class Scalars, class Hyper>
FLASHOPTIM_FN Scalars MakeScalars(Rule rule, const Hyper& h, uint64_t step) {
  Scalars s;
  s.gradient_multiplier = h.maximize ? -1.0F : 1.0F;
  s.coupled_decay =
      h.weight_decay_kind == WeightDecay::kCoupled ? static_cast<float>(h.weight_decay) : 0.0F;
  s.decay = DecayFactor(h);
  s.step_size = static_cast<float>(h.lr);
  if (rule == Rule::kSgd) {
    s.first_decay = static_cast<float>(h.momentum);
    s.first_rate = step == 1 ? 1.0F : static_cast<float>(1.0 - h.dampening);
    return s;
  }
  s.first_decay = static_cast<float>(h.beta1);
  s.first_rate = static_cast<float>(1.0 - h.beta1);
  s.second_decay = static_cast<float>(h.beta2);
  s.second_rate = static_cast<float>(1.0 - h.beta2);
  if (rule == Rule::kAdam) {
    s.step_size = static_cast<float>(h.lr / (1.0 - PowerBySquaring(h.beta1, step)));
    s.inverse_sqrt_bias_correction =
        static_cast<float>(1.0 / sqrt(1.0 - PowerBySquaring(h.beta2, step)));
    s.eps = static_cast<float>(h.eps);
  }
  return s;
}

// Fills seeds[purpose] for all purposes of the random stream.
template <class L>
FLASHOPTIM_FN void MakeStreamSeeds(uint64_t seed, uint64_t key, uint64_t step,
                                   uint32_t (&seeds)[4]) {
  const uint64_t words[3] = {seed, key, step};
  for (uint32_t purpose = 0; purpose < 4; ++purpose) {
    uint32_t h = purpose + 1;
    for (const uint64_t word : words) {
      h = FoldSeed<L>(h, static_cast<uint32_t>(word));
      h = FoldSeed<L>(h, static_cast<uint32_t>(word >> 32));
    }
    seeds[purpose] = h;
  }
}

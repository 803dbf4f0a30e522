// The update rules (docs/format.md, section 8). Included by core/formulas-inl.h. All arguments are
// lanes.

// The scalars of a tensor-step, broadcast once for all its elements.
template <class L>
struct LaneScalars {
  typename L::F gradient_multiplier;
  typename L::F coupled_decay;
  typename L::F decay;
  typename L::F step_size;
  typename L::F first_decay;
  typename L::F first_rate;
  typename L::F second_decay;
  typename L::F second_rate;
  typename L::F inverse_sqrt_bias_correction;
  typename L::F eps;
  bool plain_gradient;  // neither scaled nor coupled: G is g
  bool coupled;

  template <class Scalars>
  FLASHOPTIM_FN explicit LaneScalars(const Scalars& h)
      : gradient_multiplier(L::Set(h.gradient_multiplier)),
        coupled_decay(L::Set(h.coupled_decay)),
        decay(L::Set(h.decay)),
        step_size(L::Set(h.step_size)),
        first_decay(L::Set(h.first_decay)),
        first_rate(L::Set(h.first_rate)),
        second_decay(L::Set(h.second_decay)),
        second_rate(L::Set(h.second_rate)),
        inverse_sqrt_bias_correction(L::Set(h.inverse_sqrt_bias_correction)),
        eps(L::Set(h.eps)),
        plain_gradient(h.gradient_multiplier == 1.0F && h.coupled_decay == 0.0F),
        coupled(h.coupled_decay != 0.0F) {}
};

template <class L>
FLASHOPTIM_FN typename L::F EffectiveGradient(const LaneScalars<L>& h, typename L::F w,
                                              typename L::F g) {
  const auto scaled = L::Mul(h.gradient_multiplier, g);
  if (!h.coupled) return scaled;
  return L::Fma(h.coupled_decay, w, scaled);
}

// Section 8.1 up to the moments.
template <class L>
FLASHOPTIM_FN void AdamMoments(const LaneScalars<L>& h, typename L::F g, typename L::F& m,
                               typename L::F& v) {
  m = L::Fma(h.first_decay, m, L::Mul(h.first_rate, g));
  v = L::Fma(h.second_decay, v, L::Fma(L::Mul(h.second_rate, g), g, L::Set(kSecondMomentFloor)));
}

// The maximum of two second moments, neither of which is negative: images order as values do, with
// infinity and NaN on top.
template <class L>
FLASHOPTIM_FN typename L::F MaximumMoment(typename L::F x, typename L::F v) {
  return L::AsFloat(L::MaxU(L::Bits(x), L::Bits(v)));
}

template <class L>
FLASHOPTIM_FN typename L::F AdamWeight(const LaneScalars<L>& h, typename L::F w, typename L::F m,
                                       typename L::F n) {
  const auto d = L::Fma(L::Sqrt(n), h.inverse_sqrt_bias_correction, h.eps);
  const auto update = L::Mul(L::Mul(h.step_size, m), L::Reciprocal(d));
  return L::Fms(w, h.decay, update);
}

// Section 8.2.
template <class L>
FLASHOPTIM_FN typename L::F SgdWeight(const LaneScalars<L>& h, typename L::F w, typename L::F d) {
  return L::Fms(w, h.decay, L::Mul(h.step_size, d));
}

template <class L>
FLASHOPTIM_FN typename L::F SgdMomentumWeight(const LaneScalars<L>& h, bool nesterov,
                                              typename L::F w, typename L::F g, typename L::F& b) {
  b = L::Fma(h.first_decay, b, L::Mul(h.first_rate, g));
  return SgdWeight<L>(h, w, nesterov ? L::Fma(h.first_decay, b, g) : b);
}

// Section 8.3.
template <class L>
FLASHOPTIM_FN typename L::F LionWeight(const LaneScalars<L>& h, typename L::F w, typename L::F g,
                                       typename L::F& m) {
  const auto u = L::Fma(h.first_decay, m, L::Mul(h.first_rate, g));
  const auto sign = L::And(L::Bits(u), L::SetU(kSignBit));
  const auto magnitude = L::AsFloat(L::And(L::Bits(u), L::SetU(kMagnitudeMask)));
  const auto signed_step = L::AsFloat(L::Or(L::Bits(h.step_size), sign));
  const auto step = L::Select(L::Less(L::Set(0.0F), magnitude), signed_step, L::SubF(u, u));
  m = L::Fma(h.second_decay, m, L::Mul(h.second_rate, g));
  return L::Fms(w, h.decay, step);
}

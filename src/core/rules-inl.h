// The update rules (docs/format.md, section 8). Included by core/formulas-inl.h. `h` holds the scalars;
// all other arguments are lanes.

template <class L, class Scalars>
FLASHOPTIM_FN typename L::F EffectiveGradient(const Scalars& h, typename L::F w, typename L::F g) {
  const auto scaled = L::Mul(L::Set(h.gradient_multiplier), g);
  if (h.coupled_decay == 0.0F) return scaled;
  return L::Fma(L::Set(h.coupled_decay), w, scaled);
}

// Section 8.1 up to the moments; `denominator_source` is n.
template <class L, class Scalars>
FLASHOPTIM_FN void AdamMoments(const Scalars& h, typename L::F g, typename L::F& m,
                               typename L::F& v) {
  m = L::Fma(L::Set(h.first_decay), m, L::Mul(L::Set(h.first_rate), g));
  v = L::Fma(L::Set(h.second_decay), v,
             L::Fma(L::Mul(L::Set(h.second_rate), g), g, L::Set(kSecondMomentFloor)));
}

// The maximum of two second moments, neither of which is negative: images order as values do, with
// infinity and NaN on top.
template <class L>
FLASHOPTIM_FN typename L::F MaximumMoment(typename L::F x, typename L::F v) {
  return L::AsFloat(L::MaxU(L::Bits(x), L::Bits(v)));
}

template <class L, class Scalars>
FLASHOPTIM_FN typename L::F AdamWeight(const Scalars& h, typename L::F w, typename L::F m,
                                       typename L::F n) {
  const auto d =
      L::Fma(L::Sqrt(n), L::Set(h.inverse_sqrt_bias_correction), L::Set(h.eps));
  const auto update = L::Mul(L::Mul(L::Set(h.step_size), m), L::Reciprocal(d));
  return L::Fms(w, L::Set(h.decay), update);
}

// Section 8.2.
template <class L, class Scalars>
FLASHOPTIM_FN typename L::F SgdWeight(const Scalars& h, typename L::F w, typename L::F d) {
  return L::Fms(w, L::Set(h.decay), L::Mul(L::Set(h.step_size), d));
}

template <class L, class Scalars>
FLASHOPTIM_FN typename L::F SgdMomentumWeight(const Scalars& h, bool nesterov, typename L::F w,
                                              typename L::F g, typename L::F& b) {
  b = L::Fma(L::Set(h.first_decay), b, L::Mul(L::Set(h.first_rate), g));
  return SgdWeight<L>(h, w, nesterov ? L::Fma(L::Set(h.first_decay), b, g) : b);
}

// Section 8.3.
template <class L, class Scalars>
FLASHOPTIM_FN typename L::F LionWeight(const Scalars& h, typename L::F w, typename L::F g,
                                       typename L::F& m) {
  const auto u = L::Fma(L::Set(h.first_decay), m, L::Mul(L::Set(h.first_rate), g));
  const auto sign = L::And(L::Bits(u), L::SetU(kSignBit));
  const auto magnitude = L::AsFloat(L::And(L::Bits(u), L::SetU(kMagnitudeMask)));
  const auto signed_step = L::AsFloat(L::Or(L::Bits(L::Set(h.step_size)), sign));
  const auto step = L::Select(L::Less(L::Set(0.0F), magnitude), signed_step, L::SubF(u, u));
  m = L::Fma(L::Set(h.second_decay), m, L::Mul(L::Set(h.second_rate), g));
  return L::Fms(w, L::Set(h.decay), step);
}

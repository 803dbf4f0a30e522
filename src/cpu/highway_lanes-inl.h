// The lane set over one SIMD vector of up to 16 floats. Included by cpu/simd.cc inside the
// namespace of each target; hence no include guard.

struct Lanes {
  using D = hn::CappedTag<float, 16>;
  using DU = hn::RebindToUnsigned<D>;
  using DI = hn::RebindToSigned<D>;
  using F = hn::Vec<D>;
  using U = hn::Vec<DU>;
  using M = hn::Mask<D>;

  static HWY_INLINE F Set(float x) { return hn::Set(D(), x); }
  static HWY_INLINE U SetU(uint32_t x) { return hn::Set(DU(), x); }
  static HWY_INLINE U Bits(F x) { return hn::BitCast(DU(), x); }
  static HWY_INLINE F AsFloat(U x) { return hn::BitCast(D(), x); }

  static HWY_INLINE U Add(U a, U b) { return hn::Add(a, b); }
  static HWY_INLINE U Sub(U a, U b) { return hn::Sub(a, b); }
  static HWY_INLINE U And(U a, U b) { return hn::And(a, b); }
  static HWY_INLINE U AndNot(U a, U b) { return hn::AndNot(a, b); }
  static HWY_INLINE U Or(U a, U b) { return hn::Or(a, b); }
  static HWY_INLINE U Xor(U a, U b) { return hn::Xor(a, b); }
  static HWY_INLINE U OrAnd(U a, U b, U c) { return hn::OrAnd(a, b, c); }
  template <int k>
  static HWY_INLINE U Shl(U x) {
    return hn::ShiftLeft<k>(x);
  }
  template <int k>
  static HWY_INLINE U Shr(U x) {
    return hn::ShiftRight<k>(x);
  }
  static HWY_INLINE U MulU(U a, U b) { return hn::Mul(a, b); }
  static HWY_INLINE U MinU(U a, U b) { return hn::Min(a, b); }
  static HWY_INLINE U MaxU(U a, U b) { return hn::Max(a, b); }

  static HWY_INLINE F AddF(F a, F b) { return hn::Add(a, b); }
  static HWY_INLINE F SubF(F a, F b) { return hn::Sub(a, b); }
  static HWY_INLINE F Mul(F a, F b) { return hn::Mul(a, b); }
  static HWY_INLINE F Div(F a, F b) { return hn::Div(a, b); }
  static HWY_INLINE F Fma(F a, F b, F c) { return hn::MulAdd(a, b, c); }
  static HWY_INLINE F Fms(F a, F b, F c) { return hn::MulSub(a, b, c); }
  static HWY_INLINE F Sqrt(F x) { return hn::Sqrt(x); }
  static HWY_INLINE F Reciprocal(F x) { return hn::Div(Set(1.0F), x); }
  static HWY_INLINE F MaxF(F a, F b) { return hn::Max(a, b); }

  static HWY_INLINE M Less(F a, F b) { return hn::Lt(a, b); }
  static HWY_INLINE M LessU(U a, U b) { return hn::RebindMask(D(), hn::Lt(a, b)); }
  static HWY_INLINE F Select(M m, F a, F b) { return hn::IfThenElse(m, a, b); }
  static HWY_INLINE U SelectU(M m, U a, U b) {
    return hn::IfThenElse(hn::RebindMask(DU(), m), a, b);
  }
};

// The split of a master weight into a 16-bit weight and a correction (docs/format.md, section 4).
// Included by core/formulas-inl.h.

// kBelow: bits of the image below the 16-bit weight (B). kDropped: low bits given up (d).
template <int kBelow_, int kCorrectionBits>
struct WeightFormat {
  static constexpr int kBelow = kBelow_;
  static constexpr int kKept = kCorrectionBits == 0 ? 0 : kCorrectionBits == 8 ? 8 : kBelow;
  static constexpr int kDropped = kBelow - kKept;
};
template <int kCorrectionBits>
using Bfloat16Format = WeightFormat<16, kCorrectionBits>;
template <int kCorrectionBits>
using Float16Format = WeightFormat<13, kCorrectionBits>;

// Half of the dropped range: what nearest rounding adds to the image.
template <class Format>
FLASHOPTIM_FN constexpr uint32_t NearestIncrement() {
  return (1U << Format::kDropped) >> 1;
}

// The d random bits of section 4.4 from an element's two bytes.
template <class L, class Format>
FLASHOPTIM_FN typename L::U StochasticIncrement(typename L::U first, typename L::U second) {
  if constexpr (Format::kDropped == 0) {
    return L::SetU(0U);
  } else {
    return L::template Shr<16 - Format::kDropped>(L::Or(L::template Shl<8>(first), second));
  }
}

// Half a unit of the weight, in its image.
template <class Format>
FLASHOPTIM_FN constexpr uint32_t BiasOfWeight() {
  return 1U << (Format::kBelow - 1);
}

// Section 4.2: the weight from the rounded image Y.
template <class L, class Format>
FLASHOPTIM_FN typename L::U SplitWeight(typename L::U rounded) {
  if constexpr (Format::kKept == 0) {
    return L::template Shr<Format::kBelow>(rounded);
  } else {
    return L::template Shr<Format::kBelow>(L::Add(rounded, L::SetU(BiasOfWeight<Format>())));
  }
}

// The correction in the low bits of each lane; bits above the stored width are not part of it.
template <class L, class Format>
FLASHOPTIM_FN typename L::U SplitCorrection(typename L::U rounded) {
  const auto shifted = L::template Shr<Format::kDropped>(rounded);
  if constexpr (Format::kKept == 13) {  // fp16, 32 bits: sign-extend 13 bits
    const auto low = L::And(shifted, L::SetU(0x1fffU));
    return L::Sub(L::Xor(low, L::SetU(0x1000U)), L::SetU(0x1000U));
  } else {
    return shifted;
  }
}

// Section 4.3: Y from the weight (fp16: without its sign) and the correction, both shifted into
// place.
template <class L>
FLASHOPTIM_FN typename L::U JoinImage(typename L::U weight, typename L::U correction) {
  const auto moved = L::Add(weight, correction);
  // A correction is too small to reach the sign bit, except when a negative one meets a zero
  // weight.
  const auto stale = L::LessU(L::SetU(kMagnitudeMask), L::Xor(weight, moved));
  return L::SelectU(stale, weight, moved);
}

// The same in one addition per direction, for finite weights without a stale correction: if half a
// unit of the weight is added to the image as well, its upper part is the weight, and what follows
// is the correction with its sign bit flipped.
template <class Format>
FLASHOPTIM_FN constexpr uint32_t BiasedIncrement() {
  return NearestIncrement<Format>() + BiasOfWeight<Format>();
}

// NaN to the canonical NaN of fp32; everything else as it is.
template <class L>
FLASHOPTIM_FN typename L::U CanonicalBits(typename L::F x) {
  const auto bits = L::Bits(x);
  const auto magnitude = L::And(bits, L::SetU(kMagnitudeMask));
  return L::SelectU(L::LessU(L::SetU(kInfinityBits), magnitude), L::SetU(kCanonicalNan), bits);
}

// Section 4.1 for fp16: the extended image of |x|; a NaN gives the image of fp16's canonical NaN.
template <class L>
FLASHOPTIM_FN typename L::U Float16Image(typename L::F x) {
  const auto bits = L::And(L::Bits(x), L::SetU(kMagnitudeMask));
  const auto normal = L::Sub(bits, L::SetU(112U << 23));
  const auto shifted =
      L::Sub(L::Bits(L::AddF(L::AsFloat(bits), L::Set(0x1p-14F))), L::SetU(113U << 23));
  const auto image = L::SelectU(L::LessU(bits, L::SetU(113U << 23)), shifted, normal);
  const auto clamped = L::MinU(image, L::SetU(31U << 23));
  return L::SelectU(L::LessU(L::SetU(kInfinityBits), bits), L::SetU(0x7e00U << 13), clamped);
}

// Section 4.3 for fp16: the float of an extended image and a sign bit in place. With the bare
// weight shifted up this is the conversion of fp16 to fp32.
template <class L>
FLASHOPTIM_FN typename L::F Float16Value(typename L::U image, typename L::U sign) {
  const auto normal = L::Add(image, L::SetU(112U << 23));
  const auto small =
      L::Bits(L::SubF(L::AsFloat(L::Add(image, L::SetU(113U << 23))), L::Set(0x1p-14F)));
  const auto special = L::Or(L::SetU(kInfinityBits), L::And(image, L::SetU(0x007fffffU)));
  const auto finite = L::SelectU(L::LessU(image, L::SetU(1U << 23)), small, normal);
  const auto magnitude = L::SelectU(L::LessU(image, L::SetU(31U << 23)), finite, special);
  return L::AsFloat(L::Or(magnitude, sign));
}

template <class L>
FLASHOPTIM_FN typename L::F FloatFromFloat16(typename L::U half) {
  return Float16Value<L>(L::template Shl<13>(L::And(half, L::SetU(0x7fffU))),
                         L::template Shl<16>(L::And(half, L::SetU(0x8000U))));
}

template <class L>
FLASHOPTIM_FN typename L::F FloatFromBfloat16(typename L::U half) {
  return L::AsFloat(L::template Shl<16>(half));
}

// The whole of section 4 behind one name per direction, for both 16-bit dtypes. `correction` is
// sign-extended.
template <class L, class Format>
FLASHOPTIM_FN typename L::F JoinMaster(typename L::U weight, typename L::U correction) {
  const auto placed = L::template Shl<Format::kDropped>(correction);
  if constexpr (Format::kBelow == 16) {
    return L::AsFloat(JoinImage<L>(L::template Shl<16>(weight), placed));
  } else {
    const auto magnitude = L::template Shl<13>(L::And(weight, L::SetU(0x7fffU)));
    return Float16Value<L>(JoinImage<L>(magnitude, placed),
                           L::template Shl<16>(L::AndNot(L::SetU(0x7fffU), weight)));
  }
}

// `increment` is NearestIncrement or StochasticIncrement.
template <class L, class Format>
FLASHOPTIM_FN void SplitMaster(typename L::F master, typename L::U increment, typename L::U& weight,
                               typename L::U& correction) {
  if constexpr (Format::kBelow == 16) {
    // A NaN must come out canonical, so its low bits must not be rounded into.
    const auto bits = CanonicalBits<L>(master);
    const auto rounded = L::Add(bits, increment);
    weight = SplitWeight<L, Format>(rounded);
    correction = SplitCorrection<L, Format>(rounded);
  } else {
    const auto rounded = L::Add(Float16Image<L>(master), increment);
    const auto nan =
        L::LessU(L::SetU(kInfinityBits), L::And(L::Bits(master), L::SetU(kMagnitudeMask)));
    const auto sign = L::template Shr<16>(L::And(L::Bits(master), L::SetU(kSignBit)));
    weight = L::Or(SplitWeight<L, Format>(rounded), L::SelectU(nan, L::SetU(0U), sign));
    correction = SplitCorrection<L, Format>(rounded);
  }
}

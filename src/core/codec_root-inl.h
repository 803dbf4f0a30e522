// Codec `root` (docs/format.md, section 5.1). Included by core/formulas-inl.h.
//
// A codec of a moment is a struct with
//   ScaleBits(max_bits)    image of the group's scale, from the maximum of Measure over the group
//   Decoder, Encoder       what is the same for all elements of a group, made from a scale's image
//   Decode(decoder, code)  code as a float in, moment out
// and for the first moment
//   Encode(encoder, m)     the code in the low byte of each lane
// for the second moment
//   Measured(v)            the value whose image is maximised and which FixedPoint takes
//   FixedPoint(encoder, measured)  the code with 8 binary places in the low 16 bits of each lane.
//   The
//                          element's random byte is added to them; then the code is in bits 8 to 15

struct RootFirst {
  FLASHOPTIM_FN static uint32_t ScaleBits(uint32_t max_bits) {
    return (max_bits > kFirstScaleFloor ? max_bits : kFirstScaleFloor) & ~1U;
  }

  FLASHOPTIM_FN static uint32_t Offset(uint32_t scale_bits) {
    return 0x42fe0000U /* 127.0 */ - (scale_bits >> 1);
  }

  template <class L>
  struct Decoder {
    typename L::U twice_offset;
    FLASHOPTIM_FN explicit Decoder(uint32_t scale_bits)
        : twice_offset(L::SetU(Offset(scale_bits) << 1)) {}
  };

  template <class L>
  struct Encoder {
    typename L::U offset;
    FLASHOPTIM_FN explicit Encoder(uint32_t scale_bits) : offset(L::SetU(Offset(scale_bits))) {}
  };

  // For code 0 the difference is the image of a negative number, whatever the scale.
  template <class L>
  FLASHOPTIM_FN static typename L::F Decode(const Decoder<L>& decoder, typename L::F code) {
    const auto bits = L::Bits(code);
    const auto magnitude =
        L::MaxF(L::AsFloat(L::Sub(L::template Shl<1>(bits), decoder.twice_offset)), L::Set(0.0F));
    return L::AsFloat(L::OrAnd(L::Bits(magnitude), bits, L::SetU(kSignBit)));
  }

  template <class L>
  FLASHOPTIM_FN static typename L::U Encode(const Encoder<L>& encoder, typename L::F m) {
    const auto bits = L::Bits(m);
    const auto sign = L::SetU(kSignBit);
    const auto y = L::Add(L::template Shr<1>(L::AndNot(sign, bits)), encoder.offset);
    return L::Bits(L::AddF(L::AsFloat(L::OrAnd(y, bits, sign)), L::Set(kRoundToInteger)));
  }
};

struct RootSecond {
  static constexpr uint32_t kFloor = kSecondScaleFloor;

  FLASHOPTIM_FN static uint32_t ScaleBits(uint32_t max_bits) { return max_bits & ~3U; }

  FLASHOPTIM_FN static uint32_t Offset(uint32_t scale_bits) {
    return 0x437f0000U /* 255.0 */ - (scale_bits >> 2);
  }

  template <class L>
  struct Decoder {
    typename L::U four_offset;
    FLASHOPTIM_FN explicit Decoder(uint32_t scale_bits)
        : four_offset(L::SetU(Offset(scale_bits) << 2)) {}
  };

  template <class L>
  struct Encoder {
    typename L::U offset;
    FLASHOPTIM_FN explicit Encoder(uint32_t scale_bits) : offset(L::SetU(Offset(scale_bits))) {}
  };

  template <class L>
  FLASHOPTIM_FN static typename L::F Decode(const Decoder<L>& decoder, typename L::F code) {
    return L::AsFloat(L::Sub(L::template Shl<2>(L::Bits(code)), decoder.four_offset));
  }

  template <class L>
  FLASHOPTIM_FN static typename L::F Measured(typename L::F v) {
    return v;
  }

  template <class L>
  FLASHOPTIM_FN static typename L::U FixedPoint(const Encoder<L>& encoder, typename L::F v) {
    const auto y = L::AsFloat(L::Add(L::template Shr<2>(L::Bits(v)), encoder.offset));
    return L::Bits(L::AddF(L::MaxF(y, L::Set(1.0F)), L::Set(kRoundToByteFraction)));
  }
};

// Codec `softsign` (docs/format.md, section 5.2; the paper's section 3.2). Included by
// core/formulas-inl.h; core/codec_root-inl.h says what a codec offers.

struct SoftsignFirst {
  FLASHOPTIM_FN static uint32_t ScaleBits(uint32_t max_bits) {
    return RootFirst::ScaleBits(max_bits);
  }

  template <class L>
  struct Decoder {
    typename L::F scale;
    FLASHOPTIM_FN explicit Decoder(uint32_t scale_bits)
        : scale(L::AsFloat(L::SetU(scale_bits & ~kScaleFlag))) {}
  };

  template <class L>
  struct Encoder {
    typename L::F inverse;
    FLASHOPTIM_FN explicit Encoder(uint32_t scale_bits)
        : inverse(L::Div(L::Set(1.0F), L::AsFloat(L::SetU(scale_bits)))) {}
  };

  template <class L>
  FLASHOPTIM_FN static typename L::F Decode(const Decoder<L>& decoder, typename L::F code) {
    const auto y = L::Mul(code, L::Set(1.0F / 127.0F));
    const auto magnitude = L::AsFloat(L::And(L::Bits(y), L::SetU(kMagnitudeMask)));
    const auto x = L::Mul(y, L::Reciprocal(L::SubF(L::Set(2.0F), magnitude)));
    return L::Mul(x, decoder.scale);
  }

  template <class L>
  FLASHOPTIM_FN static typename L::U Encode(const Encoder<L>& encoder, typename L::F m) {
    const auto x = L::Mul(m, encoder.inverse);
    const auto magnitude = L::AsFloat(L::And(L::Bits(x), L::SetU(kMagnitudeMask)));
    const auto y = L::Mul(L::AddF(x, x), L::Reciprocal(L::AddF(L::Set(1.0F), magnitude)));
    return L::Bits(L::AddF(L::Mul(L::Set(127.0F), y), L::Set(kRoundToInteger)));
  }
};

struct SoftsignSecond {
  static constexpr uint32_t kFloor = kSecondRootScaleFloor;

  FLASHOPTIM_FN static uint32_t ScaleBits(uint32_t max_bits) { return max_bits & ~kScaleFlag; }

  template <class L>
  struct Decoder {
    typename L::F scale;
    typename L::F unit;
    FLASHOPTIM_FN explicit Decoder(uint32_t scale_bits)
        : scale(L::AsFloat(L::SetU(scale_bits & ~kScaleFlag))),
          unit(L::Div(scale, L::Set(255.0F))) {}
  };

  template <class L>
  struct Encoder {
    typename L::F inverse;
    FLASHOPTIM_FN explicit Encoder(uint32_t scale_bits)
        : inverse(L::Div(L::Set(255.0F), L::AsFloat(L::SetU(scale_bits)))) {}
  };

  template <class L>
  FLASHOPTIM_FN static typename L::F Decode(const Decoder<L>& decoder, typename L::F code) {
    const auto root =
        L::Select(L::Less(code, L::Set(255.0F)), L::Mul(code, decoder.unit), decoder.scale);
    return L::Mul(root, root);
  }

  template <class L>
  FLASHOPTIM_FN static typename L::F Measured(typename L::F v) {
    return L::Sqrt(v);
  }

  // Rounds to nearest: the binary places are zero, so that no random byte can matter.
  template <class L>
  FLASHOPTIM_FN static typename L::U FixedPoint(const Encoder<L>& encoder, typename L::F root) {
    const auto y = L::MaxF(L::Mul(root, encoder.inverse), L::Set(1.0F));
    return L::template Shl<8>(L::Bits(L::AddF(y, L::Set(kRoundToInteger))));
  }
};

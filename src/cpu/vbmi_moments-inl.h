// Moments of codec `root`. Included by cpu/vbmi.cc inside the namespace of its target.

// First moments of one group.
class FirstMoments {
 public:
  HWY_INLINE FirstMoments(const DecodeTable& table, const uint8_t* codes, float scale) {
    const Vector signed_codes = LoadBytes(codes);
    const Vector magnitudes = _mm512_abs_epi8(signed_codes);
    low_ = LookUp(table.low, magnitudes);
    high_ = _mm512_ternarylogic_epi32(LookUp(table.high, magnitudes), signed_codes,
                                      _mm512_set1_epi8(static_cast<char>(0x80)),
                                      0x78 /* a ^ (b & c) */);
    nonzero_ = Opaque(_mm512_test_epi8_mask(signed_codes, signed_codes));
    scale_ = Lanes::Bits(Lanes::Set(scale));
  }

  template <int j>
  HWY_INLINE Lanes::F Decode(const Constants& constants) const {
    const auto above = JoinPlanes(constants, low_, high_, j);
    const auto mask =
        static_cast<__mmask16>(j == 0 ? nonzero_ : _kshiftri_mask64(nonzero_, 16 * j));
    return Lanes::AsFloat(Lanes::U{_mm512_maskz_add_epi32(mask, above.raw, scale_.raw)});
  }

 private:
  static HWY_INLINE Vector LookUp(const uint8_t (&table)[128], Vector indices) {
    return _mm512_permutex2var_epi8(_mm512_load_si512(table), indices,
                                    _mm512_load_si512(table + 64));
  }

  Vector low_;
  Vector high_;
  __mmask64 nonzero_;
  Lanes::U scale_;
};

// Arithmetic, because 256 entries of two bytes would take more loads than it takes operations.
HWY_INLINE Lanes::F DecodeSecond(const RootSecond::Decoder<Lanes>& decoder, const uint8_t* codes,
                                 int j) {
  const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(codes + 16 * j));
  const Lanes::F code{_mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(bytes))};
  return RootSecond::Decode<Lanes>(decoder, code);
}

HWY_INLINE Lanes::U MaxOf(const GroupF& x) {
  return Lanes::MaxU(Lanes::MaxU(Lanes::Bits(x[0]), Lanes::Bits(x[1])),
                     Lanes::MaxU(Lanes::Bits(x[2]), Lanes::Bits(x[3])));
}

// Of numbers; a NaN may be lost.
HWY_INLINE Lanes::U MaxMagnitudeOf(const GroupF& x) {
  const auto larger = [](Lanes::F a, Lanes::F b)
                          HWY_ATTR { return Lanes::F{_mm512_range_ps(a.raw, b.raw, 0xb)}; };
  return Lanes::Bits(larger(larger(x[0], x[1]), larger(x[2], x[3])));
}

// The maxima of two vectors.
struct Maxima {
  HWY_ALIGN uint32_t lanes[16];

  // Through memory, where the next group's step finds them without a detour over the vector pipes.
  HWY_INLINE void Take(Lanes::U a, Lanes::U b) {
    const auto max = [](Vector x, Vector y) HWY_ATTR { return _mm512_max_epu32(x, y); };
    Vector both =
        max(_mm512_shuffle_i64x2(a.raw, b.raw, 0x44), _mm512_shuffle_i64x2(a.raw, b.raw, 0xee));
    both = max(both, _mm512_shuffle_i64x2(both, both, 0xb1));
    both = max(both, _mm512_shuffle_epi32(both, _MM_PERM_BADC));
    both = max(both, _mm512_shuffle_epi32(both, _MM_PERM_CDAB));
    _mm512_store_si512(lanes, both);
    asm("" : "+m"(lanes));
  }
  HWY_INLINE uint32_t First() const { return lanes[0]; }
  HWY_INLINE uint32_t Second() const { return lanes[8]; }
};

// Moments of a group between their update and their encoding.
struct Moments {
  GroupF m;
  GroupF v;
  GroupF x;
  Maxima m_and_v;
  Maxima x_and_x;
};

// Adds a random byte to each 16-bit field and packs bits 8 to 15 of the sums.
HWY_INLINE Vector AddRandomAndPack(const Constants& constants, const GroupU& fields,
                                   Lanes::U counters, Lanes::U seed) {
  const auto random = RandomWord<Lanes>(counters, seed);
  const Vector ones = _mm512_set1_epi8(-1);
  const __mmask64 carry =
      _mm512_cmpgt_epu8_mask(PackBytes<0>(constants, fields), _mm512_xor_si512(random.raw, ones));
  const Vector codes = PackBytes<1>(constants, fields);
  return _mm512_mask_sub_epi8(codes, carry, codes, ones);
}

// A second moment on its way from floats to codes.
class SecondEncoding {
 public:
  HWY_INLINE explicit SecondEncoding(uint32_t max_bits)
      : scale_bits_(RootSecond::ScaleBits(max_bits)), encoder_(scale_bits_) {}

  HWY_INLINE void Encode(const GroupF& v, int j) {
    fields_[j] = RootSecond::FixedPoint<Lanes>(encoder_, v[j]);
  }
  HWY_INLINE void Store(const Constants& constants, Lanes::U counters, Lanes::U seed,
                        uint8_t* codes, float* scale) const {
    StoreBytes(AddRandomAndPack(constants, fields_, counters, seed), codes);
    *scale = std::bit_cast<float>(scale_bits_);
  }

 private:
  uint32_t scale_bits_;
  RootSecond::Encoder<Lanes> encoder_;
  GroupU fields_;
};

class FirstEncoding {
 public:
  HWY_INLINE explicit FirstEncoding(uint32_t max_bits)
      : scale_bits_(RootFirst::ScaleBits(max_bits)), encoder_(scale_bits_) {}

  HWY_INLINE void Encode(const GroupF& m, int j) {
    codes_[j] = RootFirst::Encode<Lanes>(encoder_, m[j]);
  }
  HWY_INLINE void Store(const Constants& constants, uint8_t* codes, float* scale) const {
    StoreBytes(PackBytes<0>(constants, codes_), codes);
    *scale = std::bit_cast<float>(scale_bits_);
  }

 private:
  uint32_t scale_bits_;
  RootFirst::Encoder<Lanes> encoder_;
  GroupU codes_;
};

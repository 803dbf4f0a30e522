// Master weights of one group, with corrections of 8 or 16 bits. Included by cpu/vbmi.cc inside the
// namespace of its target.

// The master weights of one group.
template <int kBits>
class Masters {
 public:
  HWY_INLINE Masters(const Constants& constants, const Run& run, uint64_t i) {
    for (int k = 0; k < kVectors; ++k) {
      corrections_[k] = LoadBytes(run.Corrections<kBits>(i) + 64 * k);
    }
    // A negative correction borrows one from the weight; where the weight has none to lend, the
    // correction is stale and the result a NaN.
    __mmask32 negative[2];
    if constexpr (kBits == 8) {
      const __mmask64 all = Opaque(_mm512_movepi8_mask(corrections_[0]));
      negative[0] = static_cast<__mmask32>(all);
      negative[1] = static_cast<__mmask32>(_kshiftri_mask64(all, 32));
    } else {
      for (int k = 0; k < 2; ++k) negative[k] = _mm512_movepi16_mask(corrections_[k]);
    }
    for (int k = 0; k < 2; ++k) {
      const Vector weights = LoadBytes(run.Weights(i) + 64 * k);
      halves_[k] = _mm512_mask_sub_epi16(weights, negative[k], weights, constants.one);
    }
  }
  HWY_INLINE Lanes::F Join(const Constants& constants, int j) const {
    if constexpr (kBits == 8) {
      return Lanes::AsFloat(Lanes::U{_mm512_maskz_permutex2var_epi8(
          constants.all_but_byte_0, halves_[j / 2], kHalvesAndBytes[j].Load(), corrections_[0])});
    } else {
      return Lanes::AsFloat(Lanes::U{_mm512_permutex2var_epi8(
          halves_[j / 2], kPairsOfHalves[j % 2].Load(), corrections_[j / 2])});
    }
  }

 private:
  static constexpr int kVectors = kBits / 8;
  Vector halves_[2];
  Vector corrections_[kVectors];
};

// What is added to the images of the weights: half a unit of the weight, and what rounds them.
template <int kBits>
HWY_INLINE void Bias(const TensorTask& task, const GroupF& w, const Run& run, uint64_t i,
                     GroupU& biased) {
  using Format = Bfloat16Format<kBits>;
  if (kBits == 8 && task.stochastic_weight) {
    // A correction of 8 bits drops 8, so that the first random byte of an element is all it needs.
    const auto random = RandomWord<Lanes>(run.Counters(i), run.weight_seed);
    const auto add = [&]<int j>() HWY_ATTR {
      const Lanes::U increment{_mm512_cvtepu8_epi32(_mm512_extracti32x4_epi32(random.raw, j))};
      biased[j] =
          Lanes::Add(Lanes::Add(Lanes::Bits(w[j]), Lanes::SetU(BiasOfWeight<Format>())), increment);
    };
    add.template operator()<0>();
    add.template operator()<1>();
    add.template operator()<2>();
    add.template operator()<3>();
    return;
  }
  for (int j = 0; j < 4; ++j) {
    biased[j] = Lanes::Add(Lanes::Bits(w[j]), Lanes::SetU(BiasedIncrement<Format>()));
  }
}

template <int kBits>
HWY_INLINE void StoreMasters(const TensorTask& task, const Constants& constants, const GroupF& w,
                             const Run& run, uint64_t i) {
  GroupU biased;
  Bias<kBits>(task, w, run, i, biased);
  StoreBytes(PackHalves(biased[0], biased[1]), run.Weights(i));
  StoreBytes(PackHalves(biased[2], biased[3]), run.Weights(i) + 64);
  uint8_t* const corrections = run.Corrections<kBits>(i);
  if constexpr (kBits == 8) {
    StoreBytes(_mm512_xor_si512(PackBytes<1>(constants, biased),
                                _mm512_set1_epi8(static_cast<char>(0x80))),
               corrections);
  } else {
    const Vector sign = _mm512_set1_epi16(static_cast<int16_t>(0x8000));
    for (int k = 0; k < 2; ++k) {
      const Vector low = PackLowHalves(biased[2 * k], biased[2 * k + 1]);
      StoreBytes(_mm512_xor_si512(low, sign), corrections + 64 * k);
    }
  }
}

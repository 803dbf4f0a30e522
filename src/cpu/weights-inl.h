// Weights and gradients of every dtype, in quads. Included by cpu/simd.cc inside the namespace of
// each target. `i` is the first element of the quads inside the group.

// What most training uses is stepped in registers; all other dtypes go through these functions,
// which stay out of line so that the loops fit the instruction cache.
HWY_INLINE bool IsCommonWeight(const TensorTask& task) {
  return task.weight_dtype == DType::kBFloat16 && task.correction_bits == 8 &&
         !task.stochastic_weight;
}

template <class Format>
HWY_INLINE void JoinQuads(const GroupView& view, size_t i, QuadF& masters) {
  QuadU weights;
  QuadU corrections;
  LoadHalves(static_cast<const uint16_t*>(view.weight) + i, weights);
  if constexpr (Format::kKept == 0) {
    for (auto& correction : corrections) correction = Lanes::SetU(0);
  } else if constexpr (Format::kKept == 8) {
    SplitBytes(LoadWords(static_cast<const int8_t*>(view.correction) + i), corrections);
    // Sign extension of a byte.
    const auto sign = Lanes::SetU(0x80U);
    for (auto& correction : corrections) {
      correction = hn::Sub(hn::Xor(correction, sign), sign);
    }
  } else {
    LoadHalves(static_cast<const uint16_t*>(view.correction) + i, corrections);
    for (auto& correction : corrections) {
      correction =
          hn::BitCast(Lanes::DU(), hn::ShiftRight<16>(hn::BitCast(Lanes::DI(), correction)));
    }
  }
  for (int j = 0; j < 4; ++j) {
    masters[j] = JoinMaster<Lanes, Format>(hn::ShiftRight<16>(weights[j]), corrections[j]);
  }
}

template <class Format>
HWY_INLINE void SplitQuads(const TensorTask& task, uint64_t group, const GroupView& view, size_t i,
                           const QuadF& masters) {
  QuadU increments;
  for (auto& increment : increments) increment = Lanes::SetU(NearestIncrement<Format>());
  if (task.stochastic_weight) {
    QuadU first;
    QuadU second;
    RandomBytes(task, group, core::kWeightFirst).Load(i, first);
    RandomBytes(task, group, core::kWeightSecond).Load(i, second);
    for (int j = 0; j < 4; ++j) {
      increments[j] = StochasticIncrement<Lanes, Format>(first[j], second[j]);
    }
  }
  QuadU weights;
  QuadU corrections;
  for (int j = 0; j < 4; ++j) {
    SplitMaster<Lanes, Format>(masters[j], increments[j], weights[j], corrections[j]);
    weights[j] = hn::ShiftLeft<16>(weights[j]);
  }
  StoreHalves(weights, static_cast<uint16_t*>(view.weight) + i);
  if constexpr (Format::kKept == 8) {
    StoreWords(JoinBytes(corrections), static_cast<int8_t*>(view.correction) + i);
  } else if constexpr (Format::kKept > 8) {
    for (auto& correction : corrections) correction = hn::ShiftLeft<16>(correction);
    StoreHalves(corrections, static_cast<uint16_t*>(view.correction) + i);
  }
}

// Calls use(WeightFormat) for the 16-bit weights of a task.
template <class Use>
HWY_INLINE void WithFormat(const TensorTask& task, const Use& use) {
  const bool bfloat16 = task.weight_dtype == DType::kBFloat16;
  switch (task.correction_bits) {
    case 0:
      return bfloat16 ? use(Bfloat16Format<0>()) : use(Float16Format<0>());
    case 8:
      return bfloat16 ? use(Bfloat16Format<8>()) : use(Float16Format<8>());
    default:
      return bfloat16 ? use(Bfloat16Format<16>()) : use(Float16Format<16>());
  }
}

HWY_NOINLINE void LoadAnyMasters(const TensorTask& task, const GroupView& view, size_t i,
                                 float* tile) {
  QuadF masters;
  if (task.weight_dtype == DType::kFloat32) {
    LoadFloats(static_cast<const float*>(view.weight) + i, masters);
  } else {
    WithFormat(task, [&](auto format) HWY_ATTR { JoinQuads<decltype(format)>(view, i, masters); });
  }
  for (const auto& master : masters) {
    hn::Store(master, Lanes::D(), tile);
    tile += hn::Lanes(Lanes::D());
  }
}

HWY_NOINLINE void StoreAnyMasters(const TensorTask& task, uint64_t group, const GroupView& view,
                                  size_t i, const float* tile) {
  QuadF masters;
  for (auto& master : masters) {
    master = hn::Load(Lanes::D(), tile);
    tile += hn::Lanes(Lanes::D());
  }
  if (task.weight_dtype == DType::kFloat32) {
    StoreFloats(masters, static_cast<float*>(view.weight) + i);
  } else {
    WithFormat(task, [&](auto format)
                         HWY_ATTR { SplitQuads<decltype(format)>(task, group, view, i, masters); });
  }
}

HWY_NOINLINE void LoadAnyGradients(const TensorTask& task, const GroupView& view, size_t i,
                                   float* tile) {
  QuadF gradients;
  if (task.gradient_dtype == DType::kFloat32) {
    LoadFloats(static_cast<const float*>(view.gradient) + i, gradients);
  } else {
    QuadU halves;
    LoadHalves(static_cast<const uint16_t*>(view.gradient) + i, halves);
    for (int j = 0; j < 4; ++j) {
      const auto half = hn::ShiftRight<16>(halves[j]);
      gradients[j] = task.gradient_dtype == DType::kBFloat16 ? FloatFromBfloat16<Lanes>(half)
                                                             : FloatFromFloat16<Lanes>(half);
    }
  }
  for (const auto& gradient : gradients) {
    hn::Store(gradient, Lanes::D(), tile);
    tile += hn::Lanes(Lanes::D());
  }
}

HWY_INLINE void LoadTile(const float* tile, QuadF& x) {
  for (auto& lane : x) {
    lane = hn::Load(Lanes::D(), tile);
    tile += hn::Lanes(Lanes::D());
  }
}

// kTrusting leaves out the check for stale corrections (format, 4.3); where it would have found
// one, the result is a NaN.
template <bool kTrusting>
HWY_INLINE void LoadMasters(const TensorTask& task, const GroupView& view, size_t i, QuadF& w) {
  if (IsCommonWeight(task)) {
    QuadU weights;
    QuadU corrections;
    LoadHalves(static_cast<const uint16_t*>(view.weight) + i, weights);
    // Corrections with their sign bit flipped, as BiasOfWeight wants them.
    const auto flipped = hn::Xor(LoadWords(static_cast<const int8_t*>(view.correction) + i),
                                 Lanes::SetU(0x80808080U));
    SplitBytesShifted(flipped, corrections);
    const auto bias = Lanes::SetU(BiasOfWeight<Bfloat16Format<8>>());
    for (int j = 0; j < 4; ++j) {
      if (kTrusting) {
        w[j] = Lanes::AsFloat(hn::Sub(hn::Or(weights[j], corrections[j]), bias));
      } else {
        w[j] = Lanes::AsFloat(JoinImage<Lanes>(weights[j], hn::Sub(corrections[j], bias)));
      }
    }
    return;
  }
  HWY_ALIGN float tile[kGroupSize];
  LoadAnyMasters(task, view, i, tile);
  LoadTile(tile, w);
}

HWY_INLINE void LoadGradients(const TensorTask& task, const GroupView& view, size_t i, QuadF& g) {
  if (task.gradient_dtype == DType::kBFloat16) {
    QuadU halves;
    LoadHalves(static_cast<const uint16_t*>(view.gradient) + i, halves);
    for (int j = 0; j < 4; ++j) g[j] = Lanes::AsFloat(halves[j]);
    return;
  }
  HWY_ALIGN float tile[kGroupSize];
  LoadAnyGradients(task, view, i, tile);
  LoadTile(tile, g);
}

// `tile` holds the quads as LoadTile reads them; all values are finite.
HWY_INLINE void StoreMasters(const TensorTask& task, uint64_t group, const GroupView& view,
                             size_t i, const float* tile) {
  if (!IsCommonWeight(task)) return StoreAnyMasters(task, group, view, i, tile);
  using Format = Bfloat16Format<8>;
  QuadF masters;
  LoadTile(tile, masters);
  QuadU biased;
  for (int j = 0; j < 4; ++j) {
    biased[j] = hn::Add(Lanes::Bits(masters[j]), Lanes::SetU(BiasedIncrement<Format>()));
  }
  StoreHalves(biased, static_cast<uint16_t*>(view.weight) + i);
  StoreWords(hn::Xor(JoinBytesShifted(biased), Lanes::SetU(0x80808080U)),
             static_cast<int8_t*>(view.correction) + i);
}

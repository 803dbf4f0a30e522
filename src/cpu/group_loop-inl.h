// The step of many groups with SIMD lanes. Included by cpu/simd.cc inside the namespace of each target.
//
// A group is stepped in two passes: the first updates all elements into local tiles and takes the
// maxima; the second encodes and writes. Nothing is written before it is known that every value is
// finite; a group where one is not goes to the scalar reference, which knows how to mark it. So the
// fast path carries no special cases.

// Addresses of one whole group of 64 elements: inside the tensor, or of its padded copy.
struct GroupView {
  void* weight;
  void* correction;
  const void* gradient;
  void* first;
  void* second;
  void* maximum;
};

HWY_INLINE void* Advance(void* base, uint64_t bytes) {
  return base == nullptr ? nullptr : static_cast<uint8_t*>(base) + bytes;
}

HWY_INLINE GroupView ViewAt(const TensorTask& task, uint64_t offset) {
  const uint64_t moment_size = task.codec == Codec::kNone ? sizeof(float) : 1;
  return {Advance(task.weight, offset * ElementSize(task.weight_dtype)),
          Advance(task.correction, offset * (task.correction_bits / 8)),
          static_cast<const uint8_t*>(task.gradient) + offset * ElementSize(task.gradient_dtype),
          Advance(task.first, offset * moment_size),
          Advance(task.second, offset * moment_size),
          Advance(task.maximum, offset * moment_size)};
}

using Tile = float[kGroupSize];

// ---- weights ----

template <class Format, class Correction, class LoadCorrection>
HWY_INLINE void JoinTile(const void* weight, const Correction* correction,
                         LoadCorrection load_correction, float* tile) {
  for (size_t i = 0; i < kGroupSize; i += Width()) {
    StoreF32(JoinMaster<Lanes, Format>(LoadU16(static_cast<const uint16_t*>(weight) + i),
                                       load_correction(correction + i)),
             tile + i);
  }
}

template <template <int> class Format>
HWY_INLINE void LoadWeights16(const GroupView& view, int correction_bits, float* tile) {
  const auto no_correction = [](const uint8_t*) HWY_ATTR { return Lanes::SetU(0); };
  if (correction_bits == 0) {
    // There is no correction to point at; the weight's own address stands in and is not read.
    JoinTile<Format<0>>(view.weight, static_cast<const uint8_t*>(view.weight), no_correction, tile);
  } else if (correction_bits == 8) {
    JoinTile<Format<8>>(view.weight, static_cast<const int8_t*>(view.correction), LoadI8, tile);
  } else {
    JoinTile<Format<16>>(view.weight, static_cast<const int16_t*>(view.correction), LoadI16, tile);
  }
}

HWY_INLINE void LoadWeights(const TensorTask& task, const GroupView& view, float* tile) {
  if (task.weight_dtype == DType::kBFloat16) {
    LoadWeights16<Bfloat16Format>(view, task.correction_bits, tile);
  } else if (task.weight_dtype == DType::kFloat16) {
    LoadWeights16<Float16Format>(view, task.correction_bits, tile);
  } else {
    memcpy(tile, view.weight, sizeof(Tile));
  }
}

// Random bytes of the 64 elements of a group, in element order.
struct RandomTile {
  HWY_ALIGN uint8_t bytes[kGroupSize];

  HWY_INLINE void Fill(uint64_t group, uint32_t stream_seed) {
    const uint64_t counter = 16 * group;
    const auto high = static_cast<uint32_t>(counter >> 32);
    const auto seed = Lanes::Xor(Lanes::SetU(stream_seed), Mix<Lanes>(Lanes::SetU(high)));
    const Lanes::DU du;
    for (size_t quad = 0; quad < 16; quad += Width()) {
      const auto counters = hn::Iota(du, static_cast<uint32_t>(counter + quad));
      hn::StoreU(RandomWord<Lanes>(counters, seed), du, reinterpret_cast<uint32_t*>(bytes) + quad);
    }
  }
};

template <class Format, class StoreCorrection>
HWY_INLINE void SplitTile(const TensorTask& task, uint64_t group, const float* tile, void* weight,
                          StoreCorrection store_correction) {
  RandomTile first;
  RandomTile second;
  if (task.stochastic_weight) {
    first.Fill(group, task.stream_seeds[core::kWeightFirst]);
    if (Format::kDropped > 8) second.Fill(group, task.stream_seeds[core::kWeightSecond]);
  }
  auto increment = Lanes::SetU(NearestIncrement<Format>());
  for (size_t i = 0; i < kGroupSize; i += Width()) {
    if (task.stochastic_weight) {
      const auto low = Format::kDropped > 8 ? LoadU8(second.bytes + i) : Lanes::SetU(0);
      increment = StochasticIncrement<Lanes, Format>(LoadU8(first.bytes + i), low);
    }
    auto weights = Lanes::SetU(0);
    auto corrections = Lanes::SetU(0);
    SplitMaster<Lanes, Format>(LoadF32(tile + i), increment, weights, corrections);
    StoreU16(weights, static_cast<uint16_t*>(weight) + i);
    store_correction(corrections, i);
  }
}

template <template <int> class Format>
HWY_INLINE void StoreWeights16(const TensorTask& task, uint64_t group, const GroupView& view,
                               const float* tile) {
  if (task.correction_bits == 0) {
    SplitTile<Format<0>>(task, group, tile, view.weight, [](Lanes::U, size_t) HWY_ATTR {});
  } else if (task.correction_bits == 8) {
    auto* correction = static_cast<uint8_t*>(view.correction);
    SplitTile<Format<8>>(task, group, tile, view.weight,
                         [=](Lanes::U x, size_t i) HWY_ATTR { StoreU8(x, correction + i); });
  } else {
    auto* correction = static_cast<uint16_t*>(view.correction);
    SplitTile<Format<16>>(task, group, tile, view.weight,
                          [=](Lanes::U x, size_t i) HWY_ATTR { StoreU16(x, correction + i); });
  }
}

HWY_INLINE void StoreWeights(const TensorTask& task, uint64_t group, const GroupView& view,
                             const float* tile) {
  if (task.weight_dtype == DType::kBFloat16) {
    StoreWeights16<Bfloat16Format>(task, group, view, tile);
  } else if (task.weight_dtype == DType::kFloat16) {
    StoreWeights16<Float16Format>(task, group, view, tile);
  } else {
    memcpy(view.weight, tile, sizeof(Tile));
  }
}

HWY_INLINE void LoadGradients(const TensorTask& task, const GroupView& view, float* tile) {
  const auto* half = static_cast<const uint16_t*>(view.gradient);
  if (task.gradient_dtype == DType::kBFloat16) {
    for (size_t i = 0; i < kGroupSize; i += Width()) {
      StoreF32(FloatFromBfloat16<Lanes>(LoadU16(half + i)), tile + i);
    }
  } else if (task.gradient_dtype == DType::kFloat16) {
    for (size_t i = 0; i < kGroupSize; i += Width()) {
      StoreF32(FloatFromFloat16<Lanes>(LoadU16(half + i)), tile + i);
    }
  } else {
    memcpy(tile, view.gradient, sizeof(Tile));
  }
}

// ---- moments ----

// A moment's codec as the loop needs it, for codes with scales and for fp32.
template <class Code>
struct QuantizedFirst {
  using Decoder = typename Code::template Decoder<Lanes>;

  static HWY_INLINE Lanes::F Load(const Decoder& decoder, const void* codes, size_t i) {
    return Code::template Decode<Lanes>(
        decoder, FloatFromInteger(LoadI8(static_cast<const int8_t*>(codes) + i)));
  }

  static HWY_INLINE void Store(const float* tile, uint32_t max_bits, void* codes, float* scale) {
    const uint32_t scale_bits = Code::ScaleBits(max_bits);
    const typename Code::template Encoder<Lanes> encoder(scale_bits);
    for (size_t i = 0; i < kGroupSize; i += Width()) {
      StoreU8(Code::template Encode<Lanes>(encoder, LoadF32(tile + i)),
              static_cast<uint8_t*>(codes) + i);
    }
    *scale = std::bit_cast<float>(scale_bits);
  }
};

template <class Code>
struct QuantizedSecond {
  using Decoder = typename Code::template Decoder<Lanes>;

  static HWY_INLINE Lanes::F Load(const Decoder& decoder, const void* codes, size_t i) {
    return Code::template Decode<Lanes>(
        decoder, FloatFromInteger(LoadU8(static_cast<const uint8_t*>(codes) + i)));
  }

  static HWY_INLINE Lanes::F Measured(Lanes::F v) { return Code::template Measured<Lanes>(v); }

  static HWY_INLINE void Store(const float* tile, uint32_t max_bits, uint64_t group, uint32_t seed,
                               void* codes, float* scale) {
    const uint32_t scale_bits = Code::ScaleBits(max_bits);
    const typename Code::template Encoder<Lanes> encoder(scale_bits);
    RandomTile random;
    random.Fill(group, seed);
    for (size_t i = 0; i < kGroupSize; i += Width()) {
      const auto fixed = Code::template Encode<Lanes>(encoder, LoadF32(tile + i),
                                                      LoadU8(random.bytes + i));
      StoreU8(hn::ShiftRight<8>(fixed), static_cast<uint8_t*>(codes) + i);
    }
    *scale = std::bit_cast<float>(scale_bits);
  }
};

struct PlainDecoder {
  explicit HWY_INLINE PlainDecoder(uint32_t /*scale_bits*/) {}
};

struct PlainFirst {
  using Decoder = PlainDecoder;

  static HWY_INLINE Lanes::F Load(const Decoder& /*decoder*/, const void* values, size_t i) {
    return LoadF32(static_cast<const float*>(values) + i);
  }

  static HWY_INLINE void Store(const float* tile, uint32_t /*max_bits*/, void* values,
                               float* /*scale*/) {
    for (size_t i = 0; i < kGroupSize; i += Width()) {
      StoreF32(Lanes::AsFloat(FlushedFirstBits<Lanes>(LoadF32(tile + i))),
               static_cast<float*>(values) + i);
    }
  }
};

struct PlainSecond {
  using Decoder = PlainDecoder;

  static HWY_INLINE Lanes::F Load(const Decoder& /*decoder*/, const void* values, size_t i) {
    return LoadF32(static_cast<const float*>(values) + i);
  }

  static HWY_INLINE Lanes::F Measured(Lanes::F v) { return v; }

  static HWY_INLINE void Store(const float* tile, uint32_t /*max_bits*/, uint64_t /*group*/,
                               uint32_t /*seed*/, void* values, float* /*scale*/) {
    memcpy(values, tile, sizeof(Tile));
  }
};

struct NoneCodec {
  using First = PlainFirst;
  using Second = PlainSecond;
  static constexpr bool kQuantized = false;
};
struct RootCodec {
  using First = QuantizedFirst<RootFirst>;
  using Second = QuantizedSecond<RootSecond>;
  static constexpr bool kQuantized = true;
};
struct SoftsignCodec {
  using First = QuantizedFirst<SoftsignFirst>;
  using Second = QuantizedSecond<SoftsignSecond>;
  static constexpr bool kQuantized = true;
};

// ---- one group ----

// The dtypes that the loop is tuned for load and split in place; all others go through tiles.
constexpr bool kTuned = true;
constexpr bool kAnyDtype = false;

HWY_INLINE bool IsTuned(const TensorTask& task) {
  return task.weight_dtype == DType::kBFloat16 && task.correction_bits == 8 &&
         task.gradient_dtype == DType::kBFloat16 && !task.stochastic_weight;
}

HWY_INLINE uint32_t ScaleBitsAt(const float* scales, uint64_t group) {
  return scales == nullptr ? 0U : std::bit_cast<uint32_t>(scales[group]);
}

// Steps one whole group, or returns false with nothing written if some value is not finite.
template <KernelRule kRule, class Codec, bool kDtypes>
HWY_INLINE bool StepGroup(const TensorTask& task, const GroupView& view, uint64_t group) {
  using L = Lanes;
  using First = typename Codec::First;
  using Second = typename Codec::Second;
  const core::StepScalars h = task.scalars;

  uint32_t first_bits = 0;
  uint32_t second_bits = 0;
  uint32_t maximum_bits = 0;
  if constexpr (Codec::kQuantized) {
    if (HasFirst(kRule)) first_bits = ScaleBitsAt(task.first_scale, group);
    if (HasSecond(kRule)) second_bits = ScaleBitsAt(task.second_scale, group);
    if (HasMaximum(kRule)) maximum_bits = ScaleBitsAt(task.maximum_scale, group);
    if (((first_bits | second_bits | maximum_bits) & kScaleFlag) != 0) return false;
  }
  const typename First::Decoder first_decoder(first_bits);
  const typename Second::Decoder second_decoder(second_bits);
  const typename Second::Decoder maximum_decoder(maximum_bits);

  HWY_ALIGN Tile w_tile;
  HWY_ALIGN Tile g_tile;
  HWY_ALIGN Tile m_tile;
  HWY_ALIGN Tile v_tile;
  HWY_ALIGN Tile x_tile;
  if constexpr (kDtypes == kAnyDtype) {
    LoadWeights(task, view, w_tile);
    LoadGradients(task, view, g_tile);
  }

  const auto magnitude_mask = L::SetU(kMagnitudeMask);
  auto w_max = L::SetU(0);
  auto m_max = L::SetU(0);
  auto v_max = L::SetU(0);
  auto x_max = L::SetU(0);
  for (size_t i = 0; i < kGroupSize; i += Width()) {
    L::F w;
    L::F g;
    if constexpr (kDtypes == kTuned) {
      w = JoinMaster<L, Bfloat16Format<8>>(LoadU16(static_cast<const uint16_t*>(view.weight) + i),
                                           LoadI8(static_cast<const int8_t*>(view.correction) + i));
      g = FloatFromBfloat16<L>(LoadU16(static_cast<const uint16_t*>(view.gradient) + i));
    } else {
      w = LoadF32(w_tile + i);
      g = LoadF32(g_tile + i);
    }
    g = EffectiveGradient<L>(h, w, g);

    if constexpr (kRule == KernelRule::kSgd) {
      w = SgdWeight<L>(h, w, g);
    } else {
      auto m = First::Load(first_decoder, view.first, i);
      if constexpr (kRule == KernelRule::kSgdMomentum) {
        w = SgdMomentumWeight<L>(h, task.nesterov, w, g, m);
      } else if constexpr (kRule == KernelRule::kLion) {
        w = LionWeight<L>(h, w, g, m);
      } else {
        auto v = Second::Load(second_decoder, view.second, i);
        AdamMoments<L>(h, g, m, v);
        auto n = v;
        if constexpr (HasMaximum(kRule)) {
          n = MaximumMoment<L>(Second::Load(maximum_decoder, view.maximum, i), v);
          const auto measured = Second::Measured(n);
          x_max = L::MaxU(x_max, L::Bits(measured));
          StoreF32(measured, x_tile + i);
        }
        w = AdamWeight<L>(h, w, m, n);
        const auto measured = Second::Measured(v);
        v_max = L::MaxU(v_max, L::Bits(measured));
        StoreF32(measured, v_tile + i);
      }
      m_max = L::MaxU(m_max, L::And(L::Bits(m), magnitude_mask));
      StoreF32(m, m_tile + i);
    }
    w_max = L::MaxU(w_max, L::And(L::Bits(w), magnitude_mask));
    StoreF32(w, w_tile + i);
  }

  const auto all_max = L::MaxU(L::MaxU(w_max, m_max), L::MaxU(v_max, x_max));
  if (!hn::AllTrue(L::DU(), hn::Lt(all_max, L::SetU(kInfinityBits)))) return false;

  if constexpr (kDtypes == kTuned) {
    const auto increment = L::SetU(NearestIncrement<Bfloat16Format<8>>());
    for (size_t i = 0; i < kGroupSize; i += Width()) {
      const auto rounded = L::Add(L::Bits(LoadF32(w_tile + i)), increment);
      StoreU16(SplitWeight<L, Bfloat16Format<8>>(rounded), static_cast<uint16_t*>(view.weight) + i);
      StoreU8(SplitCorrection<L, Bfloat16Format<8>>(rounded),
              static_cast<uint8_t*>(view.correction) + i);
    }
  } else {
    StoreWeights(task, group + task.first_group, view, w_tile);
  }
  const uint64_t global_group = group + task.first_group;
  if constexpr (HasFirst(kRule)) {
    First::Store(m_tile, MaxOfLanes(m_max), view.first, task.first_scale + group);
  }
  if constexpr (HasSecond(kRule)) {
    Second::Store(v_tile, MaxOfLanes(v_max), global_group, task.stream_seeds[core::kSecondMoment],
                  view.second, task.second_scale + group);
  }
  if constexpr (HasMaximum(kRule)) {
    Second::Store(x_tile, MaxOfLanes(x_max), global_group, task.stream_seeds[core::kMaximum],
                  view.maximum, task.maximum_scale + group);
  }
  return true;
}

// A copy of a short group, filled up to 64 elements with its last one, which changes neither a maximum
// nor what is finite.
class PaddedGroup {
 public:
  PaddedGroup(const TensorTask& task, const GroupView& source, uint64_t size)
      : source_(source), size_(size) {
    const uint64_t moment_size = task.codec == Codec::kNone ? sizeof(float) : 1;
    sizes_ = {ElementSize(task.weight_dtype), task.correction_bits / 8U, moment_size};
    Fill(gradient_, source.gradient, ElementSize(task.gradient_dtype));
    Fill(weight_, source.weight, sizes_.weight);
    Fill(correction_, source.correction, sizes_.correction);
    Fill(first_, source.first, moment_size);
    Fill(second_, source.second, moment_size);
    Fill(maximum_, source.maximum, moment_size);
  }

  GroupView View() { return {weight_, correction_, gradient_, first_, second_, maximum_}; }

  void CopyBack() const {
    Copy(source_.weight, weight_, sizes_.weight);
    Copy(source_.correction, correction_, sizes_.correction);
    Copy(source_.first, first_, sizes_.moment);
    Copy(source_.second, second_, sizes_.moment);
    Copy(source_.maximum, maximum_, sizes_.moment);
  }

 private:
  using Buffer = uint8_t[kGroupSize * sizeof(float)];

  void Fill(uint8_t* buffer, const void* source, uint64_t element_size) const {
    if (source == nullptr) return;
    memcpy(buffer, source, size_ * element_size);
    for (uint64_t i = size_; i < kGroupSize; ++i) {
      memcpy(buffer + i * element_size, buffer + (size_ - 1) * element_size, element_size);
    }
  }

  void Copy(void* target, const uint8_t* buffer, uint64_t element_size) const {
    if (target != nullptr) memcpy(target, buffer, size_ * element_size);
  }

  struct Sizes {
    uint64_t weight;
    uint64_t correction;
    uint64_t moment;
  };

  GroupView source_;
  uint64_t size_;
  Sizes sizes_;
  HWY_ALIGN Buffer weight_;
  HWY_ALIGN Buffer correction_;
  HWY_ALIGN Buffer gradient_;
  HWY_ALIGN Buffer first_;
  HWY_ALIGN Buffer second_;
  HWY_ALIGN Buffer maximum_;
};

// ---- many groups ----

template <KernelRule kRule, class Codec, bool kDtypes>
void StepRange(const TensorTask& task, uint64_t begin, uint64_t end) {
  const uint64_t groups_per_row = core::GroupsPerRow(task.row_length);
  uint64_t row = begin / groups_per_row;
  uint64_t in_row = begin % groups_per_row;
  for (uint64_t group = begin; group < end; ++group) {
    const uint64_t start = in_row * kGroupSize;
    const GroupView view = ViewAt(task, row * task.row_length + start);
    const uint64_t left = task.row_length - start;
    bool done = false;
    if (left >= kGroupSize) {
      done = StepGroup<kRule, Codec, kDtypes>(task, view, group);
    } else {
      PaddedGroup padded(task, view, left);
      done = StepGroup<kRule, Codec, kAnyDtype>(task, padded.View(), group);
      if (done) padded.CopyBack();
    }
    if (!done) StepGroupReference(task, group);
    if (++in_row == groups_per_row) {
      in_row = 0;
      ++row;
    }
  }
}

template <KernelRule kRule, class Codec>
void StepRangeOfCodec(const TensorTask& task, uint64_t begin, uint64_t end) {
  if (Codec::kQuantized && IsTuned(task)) return StepRange<kRule, Codec, kTuned>(task, begin, end);
  return StepRange<kRule, Codec, kAnyDtype>(task, begin, end);
}

template <KernelRule kRule>
void StepRangeOfRule(const TensorTask& task, uint64_t begin, uint64_t end) {
  switch (task.codec) {
    case Codec::kNone:
      return StepRangeOfCodec<kRule, NoneCodec>(task, begin, end);
    case Codec::kRoot:
      return StepRangeOfCodec<kRule, RootCodec>(task, begin, end);
    case Codec::kSoftsign:
      return StepRangeOfCodec<kRule, SoftsignCodec>(task, begin, end);
  }
}

void StepGroups(const TensorTask& task, uint64_t begin, uint64_t end) {
  switch (task.rule) {
    case KernelRule::kSgd:
      return StepRangeOfCodec<KernelRule::kSgd, NoneCodec>(task, begin, end);
    case KernelRule::kSgdMomentum:
      return StepRangeOfRule<KernelRule::kSgdMomentum>(task, begin, end);
    case KernelRule::kAdam:
      return StepRangeOfRule<KernelRule::kAdam>(task, begin, end);
    case KernelRule::kAdamMaximum:
      return StepRangeOfRule<KernelRule::kAdamMaximum>(task, begin, end);
    case KernelRule::kLion:
      return StepRangeOfRule<KernelRule::kLion>(task, begin, end);
  }
}

// The step of whole groups. Included by cpu/vbmi.cc inside the namespace of its target.
//
// The divider is busy for half of a group's time, and encoding needs the group's maximum first: so
// a group is updated while the one before it is encoded, vector by vector.

HWY_INLINE Lanes::F LoadGradient(const Constants& constants, const Run& run, uint64_t i, int j) {
  const Vector halves = LoadBytes(run.Gradients(i) + 64 * (j / 2));
  return Lanes::AsFloat(Lanes::U{
      _mm512_maskz_permutexvar_epi8(constants.upper_bytes, kHalves[j % 2].Load(), halves)});
}

// The moments of group `i` on their way to codes.
template <KernelRule kRule>
class Encoding {
 public:
  HWY_INLINE explicit Encoding(const Moments& moments)
      : m_(moments.m_and_v.First()), v_(moments.m_and_v.Second()), x_(moments.x_and_x.First()) {}

  HWY_INLINE void Encode(const Moments& moments, int j) {
    m_.Encode(moments.m, j);
    if constexpr (HasSecond(kRule)) v_.Encode(moments.v, j);
    if constexpr (HasMaximum(kRule)) x_.Encode(moments.x, j);
  }
  HWY_INLINE void Store(const Constants& constants, const Run& run, uint64_t i) const {
    m_.Store(constants, run.First(i), run.first_scale + i);
    const auto counters = run.Counters(i);
    if constexpr (HasSecond(kRule)) {
      v_.Store(constants, counters, run.second_seed, run.Second(i), run.second_scale + i);
    }
    if constexpr (HasMaximum(kRule)) {
      x_.Store(constants, counters, run.maximum_seed, run.Maximum(i), run.maximum_scale + i);
    }
  }

 private:
  FirstEncoding m_;
  SecondEncoding v_;
  SecondEncoding x_;
};

// Of every lane.
HWY_INLINE __mmask16 Nonfinite(Lanes::F x) {
  return _mm512_fpclass_ps_mask(x.raw, 0x99 /* NaN, infinities */);
}

// Updates group `i`, and encodes the one before it if kPrevious, whose moments it replaces. Returns
// false with nothing written of group `i` if it needs care.
template <KernelRule kRule, int kBits, bool kPlainGradient, bool kPrevious>
HWY_INLINE bool StepGroup(const TensorTask& task, const Constants& constants,
                          const DecodeTable& table, const LaneScalars<Lanes>& h, const Run& run,
                          uint64_t i, Moments& moments) {
  const uint32_t first_bits = std::bit_cast<uint32_t>(run.first_scale[i]);
  uint32_t second_bits = 0;
  uint32_t maximum_bits = 0;
  if constexpr (HasSecond(kRule)) second_bits = std::bit_cast<uint32_t>(run.second_scale[i]);
  if constexpr (HasMaximum(kRule)) maximum_bits = std::bit_cast<uint32_t>(run.maximum_scale[i]);
  const RootSecond::Decoder<Lanes> second_decoder(second_bits);
  const RootSecond::Decoder<Lanes> maximum_decoder(maximum_bits);
  Encoding<kRule> previous(moments);
  const FirstMoments first(table, run.First(i), run.first_scale[i]);
  const Masters<kBits> masters(constants, run, i);
  GroupF w;
  GroupF m;
  GroupF v;
  GroupF x;
  const auto step_vector = [&]<int j>() HWY_ATTR {
    w[j] = masters.Join(constants, j);
    auto g = LoadGradient(constants, run, i, j);
    m[j] = first.template Decode<j>(constants);
    if constexpr (HasSecond(kRule)) v[j] = DecodeSecond(second_decoder, run.Second(i), j);
    if constexpr (HasMaximum(kRule)) x[j] = DecodeSecond(maximum_decoder, run.Maximum(i), j);
    if constexpr (!kPlainGradient) g = EffectiveGradient<Lanes>(h, w[j], g);
    if constexpr (kRule == KernelRule::kSgdMomentum) {
      w[j] = SgdMomentumWeight<Lanes>(h, task.nesterov, w[j], g, m[j]);
    } else if constexpr (kRule == KernelRule::kLion) {
      w[j] = LionWeight<Lanes>(h, w[j], g, m[j]);
    } else {
      AdamMoments<Lanes>(h, g, m[j], v[j]);
      if constexpr (HasMaximum(kRule)) x[j] = MaximumMoment<Lanes>(x[j], v[j]);
      w[j] = AdamWeight<Lanes>(h, w[j], m[j], HasMaximum(kRule) ? x[j] : v[j]);
    }
    if constexpr (kPrevious) previous.Encode(moments, j);
    moments.m[j] = m[j];
    if constexpr (HasSecond(kRule)) moments.v[j] = v[j];
    if constexpr (HasMaximum(kRule)) moments.x[j] = x[j];
  };
  step_vector.template operator()<0>();
  step_vector.template operator()<1>();
  step_vector.template operator()<2>();
  step_vector.template operator()<3>();

  // A sum of products of pairs is finite only if all their factors are. Except in Lion, a first
  // moment that is not finite makes a weight that is not finite.
  auto products = Lanes::Fma(w[0], w[1], Lanes::Mul(w[2], w[3]));
  if constexpr (kRule == KernelRule::kLion) {
    products = Lanes::Fma(m[0], m[1], Lanes::Fma(m[2], m[3], products));
  }
  __mmask16 nonfinite = Nonfinite(products);
  const auto m_max = MaxMagnitudeOf(m);
  if constexpr (HasSecond(kRule)) {
    const auto v_max = MaxOf(v);
    moments.m_and_v.Take(m_max, v_max);
    nonfinite = _kor_mask16(nonfinite, Nonfinite(Lanes::AsFloat(v_max)));
  } else {
    moments.m_and_v.Take(m_max, m_max);
  }
  if constexpr (HasMaximum(kRule)) {
    const auto x_max = MaxOf(x);
    moments.x_and_x.Take(x_max, x_max);
    nonfinite = _kor_mask16(nonfinite, Nonfinite(Lanes::AsFloat(x_max)));
  }
  if constexpr (kPrevious) previous.Store(constants, run, i - 1);

  const bool flagged = ((first_bits | second_bits | maximum_bits) & kScaleFlag) != 0;
  // The table serves scales from the floor on; with the sign bit set none is one.
  const bool below = static_cast<int32_t>(first_bits) < static_cast<int32_t>(kFirstScaleFloor);
  if (HWY_UNLIKELY(flagged || below || nonfinite != 0)) return false;
  StoreMasters<kBits>(task, constants, w, run, i);
  return true;
}

template <KernelRule kRule, int kBits, bool kPlainGradient>
HWY_NOINLINE void StepRun(const TensorTask& task, const LaneScalars<Lanes>& h,
                          const Run& shared_run, uint64_t count) {
  const Run run = shared_run;  // which stores of bytes cannot change
  const DecodeTable& table = MadeOnce<MakeDecodeTable<scalar::RootFirst>>();
  const Constants constants;
  Moments moments;
  for (uint64_t i = 0; i < count; ++i) {
    // The first group, and one after a group that needed care, has none before it to encode.
    bool good =
        StepGroup<kRule, kBits, kPlainGradient, false>(task, constants, table, h, run, i, moments);
    while (good && ++i < count) {
      Prefetch(run.view, i + kGroupsAhead);
      good =
          StepGroup<kRule, kBits, kPlainGradient, true>(task, constants, table, h, run, i, moments);
    }
    if (good) {
      Encoding<kRule> last(moments);
      for (int j = 0; j < 4; ++j) last.Encode(moments, j);
      last.Store(constants, run, count - 1);
    } else {
      StepGroupsElsewhere(task, run.group + i, run.group + i + 1);
    }
  }
}

// `count` whole groups that follow each other in the whole tensor too; the first begins at element
// `offset`.
template <KernelRule kRule, int kBits, bool kPlainGradient>
void StepRuns(const TensorTask& task, const LaneScalars<Lanes>& h, uint64_t group, uint64_t offset,
              uint64_t count) {
  while (count != 0) {
    const uint64_t global_group = core::GroupInWhole(task, group);
    const uint64_t length = std::min(count, kGroupsPerSeed - global_group % kGroupsPerSeed);
    const auto high = Mix<Lanes>(Lanes::SetU(static_cast<uint32_t>(global_group / kGroupsPerSeed)));
    const Run run = {ViewAt(task, offset),
                     task.first_scale + group,
                     HasSecond(kRule) ? task.second_scale + group : nullptr,
                     HasMaximum(kRule) ? task.maximum_scale + group : nullptr,
                     group,
                     static_cast<uint32_t>(16 * global_group),
                     Lanes::Xor(Lanes::SetU(task.stream_seeds[core::kSecondMoment]), high),
                     Lanes::Xor(Lanes::SetU(task.stream_seeds[core::kMaximum]), high),
                     Lanes::Xor(Lanes::SetU(task.stream_seeds[core::kWeightFirst]), high)};
    StepRun<kRule, kBits, kPlainGradient>(task, h, run, length);
    group += length;
    offset += length * kGroupSize;
    count -= length;
  }
}

template <KernelRule kRule, int kBits, bool kPlainGradient>
void StepRange(const TensorTask& task, const LaneScalars<Lanes>& h, uint64_t begin, uint64_t end) {
  const bool ends_short = task.row_length % kGroupSize != 0;
  if (!ends_short && task.group_stride == 0) {
    return StepRuns<kRule, kBits, kPlainGradient>(task, h, begin, begin * kGroupSize, end - begin);
  }
  const uint64_t groups_per_row = core::GroupsPerRow(task.row_length);
  const uint64_t whole_per_row = task.row_length / kGroupSize;
  for (uint64_t group = begin; group < end;) {
    const uint64_t row = group / groups_per_row;
    const uint64_t in_row = group % groups_per_row;
    const uint64_t whole = std::min(whole_per_row - in_row, end - group);
    StepRuns<kRule, kBits, kPlainGradient>(task, h, group,
                                           row * task.row_length + in_row * kGroupSize, whole);
    group += whole;
    if (ends_short && group < end) {
      StepGroupsElsewhere(task, group, group + 1);
      ++group;
    }
  }
}

template <KernelRule kRule, int kBits>
void StepRangeOfBits(const TensorTask& task, uint64_t begin, uint64_t end) {
  const LaneScalars<Lanes> h(task.scalars);
  return h.plain_gradient ? StepRange<kRule, kBits, true>(task, h, begin, end)
                          : StepRange<kRule, kBits, false>(task, h, begin, end);
}

template <KernelRule kRule>
void StepRangeOfRule(const TensorTask& task, uint64_t begin, uint64_t end) {
  return task.correction_bits == 8 ? StepRangeOfBits<kRule, 8>(task, begin, end)
                                   : StepRangeOfBits<kRule, 16>(task, begin, end);
}

HWY_INLINE bool IsCommon(const TensorTask& task) {
  return task.weight_dtype == DType::kBFloat16 && task.correction_bits != 0 &&
         task.gradient_dtype == DType::kBFloat16 && task.codec == Codec::kRoot &&
         task.row_length >= kGroupSize;
}

void StepGroups(const TensorTask& task, uint64_t begin, uint64_t end) {
  if (!IsCommon(task)) return StepGroupsElsewhere(task, begin, end);
  switch (task.rule) {
    case KernelRule::kSgd:
      return StepGroupsElsewhere(task, begin, end);
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

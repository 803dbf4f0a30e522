// The step of many groups with SIMD lanes. Included by cpu/simd.cc inside the namespace of each
// target.
//
// Groups are stepped in two passes: the first updates all elements into local tiles and takes the
// maxima; the second encodes and writes. Nothing of a group is written before it is known that
// every value is finite; a group where one is not goes to the scalar reference, which knows how to
// mark it. So the fast path carries no special cases.
//
// Each pass runs over a block of groups. In one group the second pass waits for the maxima, and
// those for the longest chain of the first; several groups in a row give the processor other work
// meanwhile.

// One kind of value of a group, as the first pass leaves it, with the maximum of the magnitudes'
// images.
struct Tile {
  HWY_ALIGN float values[kGroupSize];
  HWY_ALIGN uint32_t max_bits[16];

  HWY_INLINE void Set(size_t i, Lanes::F x, Lanes::U& max) {
    max = hn::Max(max, hn::And(Lanes::Bits(x), Lanes::SetU(kMagnitudeMask)));
    hn::Store(x, Lanes::D(), values + i);
  }
  // The same for values that are not negative; the image of a negative NaN is larger than any
  // other.
  HWY_INLINE void SetUnsigned(size_t i, Lanes::F x, Lanes::U& max) {
    max = hn::Max(max, Lanes::Bits(x));
    hn::Store(x, Lanes::D(), values + i);
  }
  HWY_INLINE void SetMax(Lanes::U max) { hn::Store(max, Lanes::DU(), max_bits); }
  HWY_INLINE Lanes::U Max() const { return hn::Load(Lanes::DU(), max_bits); }
  HWY_INLINE uint32_t MaxBits() const { return hn::GetLane(hn::MaxOfLanes(Lanes::DU(), Max())); }
};

template <class Codec>
HWY_INLINE uint32_t ScaleBitsAt(const float* scales, uint64_t group) {
  return Codec::kQuantized ? std::bit_cast<uint32_t>(scales[group]) : 0U;
}

// What the first pass leaves of one group. Tiles of values that a rule does not have stay unused.
struct GroupTiles {
  GroupView view;
  uint64_t group;
  bool flagged;
  Tile w;
  Tile m;
  Tile v;
  Tile x;

  HWY_INLINE bool AllFinite() const {
    const auto max_bits = hn::Max(hn::Max(w.Max(), m.Max()), hn::Max(v.Max(), x.Max()));
    return !flagged && hn::AllTrue(Lanes::DU(), hn::Lt(max_bits, Lanes::SetU(kInfinityBits)));
  }
};

// The first pass over one group.
template <KernelRule kRule, class Codec, bool kTrusting>
HWY_INLINE void UpdateGroup(const TensorTask& task, const LaneScalars<Lanes>& h,
                            const GroupView& view, uint64_t group, GroupTiles& tiles) {
  using First = typename Codec::First;
  using Second = typename Codec::Second;

  uint32_t first_bits = 0;
  uint32_t second_bits = 0;
  uint32_t maximum_bits = 0;
  if constexpr (HasFirst(kRule)) first_bits = ScaleBitsAt<Codec>(task.first_scale, group);
  if constexpr (HasSecond(kRule)) second_bits = ScaleBitsAt<Codec>(task.second_scale, group);
  if constexpr (HasMaximum(kRule)) maximum_bits = ScaleBitsAt<Codec>(task.maximum_scale, group);
  const typename First::Decoder first_decoder(first_bits);
  const typename Second::Decoder second_decoder(second_bits);
  const typename Second::Decoder maximum_decoder(maximum_bits);

  auto w_max = Lanes::SetU(0);
  auto m_max = Lanes::SetU(0);
  auto v_max = Lanes::SetU(0);
  auto x_max = Lanes::SetU(0);
  for (size_t i = 0; i < kGroupSize; i += QuadElements()) {
    QuadF w;
    QuadF g;
    QuadF m;
    QuadF v;
    QuadF x;
    LoadMasters<kTrusting>(task, view, i, w);
    LoadGradients(task, view, i, g);
    if (!h.plain_gradient) {
      for (size_t j = 0; j < 4; ++j) g[j] = EffectiveGradient<Lanes>(h, w[j], g[j]);
    }
    if constexpr (HasFirst(kRule)) First::Load(first_decoder, view.first, i, m);
    if constexpr (HasSecond(kRule)) Second::Load(second_decoder, view.second, i, v);
    if constexpr (HasMaximum(kRule)) Second::Load(maximum_decoder, view.maximum, i, x);
    for (size_t j = 0; j < 4; ++j) {
      const size_t at = i + j * hn::Lanes(Lanes::D());
      if constexpr (kRule == KernelRule::kSgd) {
        w[j] = SgdWeight<Lanes>(h, w[j], g[j]);
      } else if constexpr (kRule == KernelRule::kSgdMomentum) {
        w[j] = SgdMomentumWeight<Lanes>(h, task.nesterov, w[j], g[j], m[j]);
      } else if constexpr (kRule == KernelRule::kLion) {
        w[j] = LionWeight<Lanes>(h, w[j], g[j], m[j]);
      } else {
        AdamMoments<Lanes>(h, g[j], m[j], v[j]);
        tiles.v.SetUnsigned(at, Second::Measured(v[j]), v_max);
        if constexpr (HasMaximum(kRule)) {
          v[j] = MaximumMoment<Lanes>(x[j], v[j]);
          tiles.x.SetUnsigned(at, Second::Measured(v[j]), x_max);
        }
        w[j] = AdamWeight<Lanes>(h, w[j], m[j], v[j]);
      }
      if constexpr (HasFirst(kRule)) tiles.m.Set(at, m[j], m_max);
      tiles.w.Set(at, w[j], w_max);
    }
  }
  tiles.view = view;
  tiles.group = group;
  tiles.flagged = ((first_bits | second_bits | maximum_bits) & kScaleFlag) != 0;
  tiles.w.SetMax(w_max);
  tiles.m.SetMax(m_max);
  tiles.v.SetMax(v_max);
  tiles.x.SetMax(x_max);
}

// The second pass over one group. Returns false with nothing written if some value is not finite.
template <KernelRule kRule, class Codec>
HWY_INLINE bool StoreGroup(const TensorTask& task, const GroupTiles& tiles) {
  using First = typename Codec::First;
  using Second = typename Codec::Second;
  if (!tiles.AllFinite()) return false;
  const GroupView& view = tiles.view;
  const uint64_t group = tiles.group;
  const uint64_t global_group = core::GroupInWhole(task, group);
  for (size_t i = 0; i < kGroupSize; i += QuadElements()) {
    StoreMasters(task, global_group, view, i, tiles.w.values + i);
  }
  if constexpr (HasFirst(kRule)) {
    First::Store(tiles.m.values, tiles.m.MaxBits(), view.first, ScaleAt(task.first_scale, group));
  }
  if constexpr (HasSecond(kRule)) {
    Second::Store(tiles.v.values, tiles.v.MaxBits(), global_group,
                  task.stream_seeds[core::kSecondMoment], view.second,
                  ScaleAt(task.second_scale, group));
  }
  if constexpr (HasMaximum(kRule)) {
    Second::Store(tiles.x.values, tiles.x.MaxBits(), global_group,
                  task.stream_seeds[core::kMaximum], view.maximum,
                  ScaleAt(task.maximum_scale, group));
  }
  return true;
}

// The second attempt at a group that the fast path could not finish, without trust in its
// corrections; then the reference.
template <KernelRule kRule, class Codec>
HWY_NOINLINE void RetryGroup(const TensorTask& task, const LaneScalars<Lanes>& h,
                             const GroupView& view, uint64_t group) {
  GroupTiles tiles;
  UpdateGroup<kRule, Codec, false>(task, h, view, group, tiles);
  if (!StoreGroup<kRule, Codec>(task, tiles)) StepGroupReference(task, group);
}

// Whole groups of a block. More than two gain nothing on a Zen 4 core and cost first-level cache.
constexpr uint64_t kGroupsPerBlock = 2;

template <KernelRule kRule, class Codec>
void StepRange(const TensorTask& task, uint64_t begin, uint64_t end) {
  const uint64_t groups_per_row = core::GroupsPerRow(task.row_length);
  uint64_t row = begin / groups_per_row;
  uint64_t in_row = begin % groups_per_row;
  const LaneScalars<Lanes> scalars(task.scalars);
  GroupTiles tiles[kGroupsPerBlock];
  for (uint64_t group = begin; group < end;) {
    uint64_t filled = 0;
    for (; filled < kGroupsPerBlock && group < end; ++group) {
      const uint64_t start = in_row * kGroupSize;
      const GroupView view = ViewAt(task, row * task.row_length + start);
      const uint64_t left = task.row_length - start;
      if (left >= kGroupSize) {
        Prefetch(view, kGroupsAhead);
        UpdateGroup<kRule, Codec, true>(task, scalars, view, group, tiles[filled++]);
      } else {
        GroupTiles short_tiles;
        PaddedGroup padded(task, view, left);
        UpdateGroup<kRule, Codec, false>(task, scalars, padded.View(), group, short_tiles);
        if (StoreGroup<kRule, Codec>(task, short_tiles)) {
          padded.CopyBack();
        } else {
          StepGroupReference(task, group);
        }
      }
      if (++in_row == groups_per_row) {
        in_row = 0;
        ++row;
      }
    }
    for (uint64_t i = 0; i < filled; ++i) {
      if (!StoreGroup<kRule, Codec>(task, tiles[i])) {
        RetryGroup<kRule, Codec>(task, scalars, tiles[i].view, tiles[i].group);
      }
    }
  }
}

template <KernelRule kRule>
void StepRangeOfRule(const TensorTask& task, uint64_t begin, uint64_t end) {
  switch (task.codec) {
    case Codec::kNone:
      return StepRange<kRule, NoneCodec>(task, begin, end);
    case Codec::kRoot:
      return StepRange<kRule, RootCodec>(task, begin, end);
    case Codec::kSoftsign:
      return StepRange<kRule, SoftsignCodec>(task, begin, end);
  }
}

void StepGroups(const TensorTask& task, uint64_t begin, uint64_t end) {
  switch (task.rule) {
    case KernelRule::kSgd:
      return StepRange<KernelRule::kSgd, NoneCodec>(task, begin, end);
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

// Where whole groups that follow each other lie. Included by cpu/vbmi.cc inside the namespace of
// its target.

// Consecutive whole groups: the addresses of the first, and what is the same for all of them.
struct Run {
  GroupView view;
  float* first_scale;
  float* second_scale;
  float* maximum_scale;
  uint64_t group;    // in the task
  uint32_t counter;  // of the first quad; its high half is in the seeds
  Lanes::U second_seed;
  Lanes::U maximum_seed;
  Lanes::U weight_seed;

  static HWY_INLINE uint8_t* Bytes(void* base, uint64_t i) {
    return static_cast<uint8_t*>(base) + kGroupSize * i;
  }
  HWY_INLINE uint8_t* Weights(uint64_t i) const { return Bytes(view.weight, 2 * i); }
  template <int kBits>
  HWY_INLINE uint8_t* Corrections(uint64_t i) const {
    return Bytes(view.correction, kBits / 8 * i);
  }
  HWY_INLINE const uint8_t* Gradients(uint64_t i) const {
    return static_cast<const uint8_t*>(view.gradient) + 2 * kGroupSize * i;
  }
  HWY_INLINE uint8_t* First(uint64_t i) const { return Bytes(view.first, i); }
  HWY_INLINE uint8_t* Second(uint64_t i) const { return Bytes(view.second, i); }
  HWY_INLINE uint8_t* Maximum(uint64_t i) const { return Bytes(view.maximum, i); }
  // Of the quads of a group.
  HWY_INLINE Lanes::U Counters(uint64_t i) const {
    return hn::Add(Lanes::SetU(counter + 16 * static_cast<uint32_t>(i)), hn::Iota(Lanes::DU(), 0));
  }
};

// Counters of quads have the same high half in so many groups.
constexpr uint64_t kGroupsPerSeed = (uint64_t{1} << 32) / 16;

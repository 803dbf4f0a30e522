// Where one group lies in the arrays of a task. Included by cpu/simd.cc and cpu/vbmi.cc inside the
// namespace of each target.

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

// The scale of a group; null where the codec has none.
HWY_INLINE float* ScaleAt(float* scales, uint64_t group) {
  return scales == nullptr ? nullptr : scales + group;
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

// Fetches what group `group` from `view` on will touch. The processor's own prefetching stops at
// every page, and a step goes through five arrays at once: without this it is 8 % slower on a Zen 4
// core. Sizes are those of the common dtypes; of wider ones a part is fetched. A prefetch never
// faults, so the ends of arrays, and arrays that are not there, need no care.
HWY_INLINE void Prefetch(const GroupView& view, uint64_t group) {
  const uintptr_t element = kGroupSize * group;
  const auto prefetch = [](const void* base, uintptr_t offset) HWY_ATTR {
    // NOLINTNEXTLINE(performance-no-int-to-ptr): arithmetic on a null pointer would be undefined
    hwy::Prefetch(reinterpret_cast<const uint8_t*>(reinterpret_cast<uintptr_t>(base) + offset));
  };
  prefetch(view.weight, 2 * element);
  prefetch(view.weight, 2 * element + kGroupSize);
  prefetch(view.gradient, 2 * element);
  prefetch(view.gradient, 2 * element + kGroupSize);
  prefetch(view.correction, element);
  prefetch(view.first, element);
  prefetch(view.second, element);
}
constexpr uint64_t kGroupsAhead = 16;

// Short groups. Included by cpu/simd.cc inside the namespace of each target.

// A copy of a short group, filled up to 64 elements with its last one, which changes neither a
// maximum nor what is finite.
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
  // A vector of copies of one element.
  static HWY_INLINE auto Repeated(const uint8_t* element, uint64_t element_size) {
    uint32_t pattern = *element;
    if (element_size == 1) {
      pattern *= 0x01010101U;
    } else if (element_size == 2) {
      uint16_t half;
      memcpy(&half, element, sizeof(half));
      pattern = half * 0x00010001U;
    } else {
      memcpy(&pattern, element, sizeof(pattern));
    }
    return hn::BitCast(hn::ScalableTag<uint8_t>(), hn::Set(hn::ScalableTag<uint32_t>(), pattern));
  }

  // The last vector of a filling may begin anywhere in the group.
  using Buffer = uint8_t[kGroupSize * sizeof(float) + HWY_MAX_BYTES];

  void Fill(uint8_t* buffer, const void* source, uint64_t element_size) const {
    if (source == nullptr) return;
    const uint64_t filled = size_ * element_size;
    memcpy(buffer, source, filled);
    const hn::ScalableTag<uint8_t> bytes;
    const auto last = Repeated(buffer + filled - element_size, element_size);
    for (uint64_t i = filled; i < kGroupSize * element_size; i += hn::Lanes(bytes)) {
      hn::StoreU(last, bytes, buffer + i);
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

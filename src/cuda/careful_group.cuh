// The step of a group with every special case of docs/format.md: any dtype, alignment, row length
// and value. Eight threads share a group; all 32 lanes of a warp must call it together.
#ifndef FLASHOPTIM_CUDA_CAREFUL_GROUP_CUH_
#define FLASHOPTIM_CUDA_CAREFUL_GROUP_CUH_

#include <cstdint>
#include <type_traits>

#include "core/tensor_task.h"
#include "cuda/cuda_lanes.cuh"
#include "cuda/elements.cuh"
#include "cuda/launch_table.h"

namespace flashoptim::cuda {

// Moments of codec none.
FLASHOPTIM_FN void LoadPlain(const void* data, const Part& part, Values& values) {
  Words8 words;
  LoadPart<std::uint32_t>(data, part, words);
  FLASHOPTIM_FOR_ELEMENTS { values[k] = __uint_as_float(words[k]); }
}

// A moment of codec Code (void: none) to and from floats; sections 5 and 6.
template <class Code>
FLASHOPTIM_FN void LoadFirst(const void* data, const float* scales, std::uint64_t group,
                             const Part& part, Values& m) {
  if constexpr (std::is_void_v<Code>) {
    LoadPlain(data, part, m);
  } else {
    const std::uint32_t scale_bits = __float_as_uint(scales[group]);
    const typename Code::template Decoder<CarefulLanes> decoder(scale_bits);
    const bool flagged = (scale_bits & kScaleFlag) != 0;
    Words2 words;
    LoadPart<std::uint8_t>(data, part, words);
    FLASHOPTIM_FOR_ELEMENTS {
      const auto code = static_cast<std::int8_t>(ByteOf(words, k));
      m[k] = flagged && code == -128
                 ? __uint_as_float(kCanonicalNan)
                 : Code::template Decode<CarefulLanes>(decoder, static_cast<float>(code));
    }
  }
}

template <class Code>
FLASHOPTIM_FN void LoadSecond(const void* data, const float* scales, std::uint64_t group,
                              const Part& part, Values& v) {
  if constexpr (std::is_void_v<Code>) {
    LoadPlain(data, part, v);
  } else {
    const std::uint32_t scale_bits = __float_as_uint(scales[group]);
    const typename Code::template Decoder<CarefulLanes> decoder(scale_bits);
    const bool flagged = (scale_bits & kScaleFlag) != 0;
    Words2 words;
    LoadPart<std::uint8_t>(data, part, words);
    FLASHOPTIM_FOR_ELEMENTS {
      const std::uint32_t code = ByteOf(words, k);
      v[k] = flagged && code == 0
                 ? __uint_as_float(kInfinityBits)
                 : Code::template Decode<CarefulLanes>(decoder, static_cast<float>(code));
    }
  }
}

// The scale of a group whose threads have `max_bits` and `flagged` of their own elements.
template <class Code>
struct GroupScale {
  std::uint32_t bits;
  std::uint32_t flag;

  FLASHOPTIM_FN GroupScale(std::uint32_t max_bits, bool flagged)
      : bits(Code::ScaleBits(GroupMaximum(max_bits))),
        flag(GroupMaximum(flagged ? kScaleFlag : 0U)) {}

  FLASHOPTIM_FN void Store(const Part& part, std::uint64_t group, float* scales) const {
    if (part.size != 0 && part.position == 0) scales[group] = __uint_as_float(bits | flag);
  }
};

template <class Code>
FLASHOPTIM_FN void StoreFirst(void* data, float* scales, std::uint64_t group, const Part& part,
                              const Values& m) {
  Words8 encoded;
  if constexpr (std::is_void_v<Code>) {
    FLASHOPTIM_FOR_ELEMENTS { encoded[k] = FlushedFirstBits<CarefulLanes>(m[k]); }
    StorePart<std::uint32_t>(encoded, part, data);
  } else {
    std::uint32_t max_bits = 0;
    bool flagged = false;
    FLASHOPTIM_FOR_ELEMENTS {
      if (k >= part.size) continue;
      if (IsFinite(m[k])) {
        max_bits = max(max_bits, __float_as_uint(m[k]) & kMagnitudeMask);
      } else {
        flagged = true;
      }
    }
    const GroupScale<Code> scale(max_bits, flagged);
    const typename Code::template Encoder<CarefulLanes> encoder(scale.bits);
    FLASHOPTIM_FOR_ELEMENTS {
      encoded[k] = IsFinite(m[k]) ? Code::template Encode<CarefulLanes>(encoder, m[k]) : 0x80U;
    }
    Words2 words;
    PackBytes(encoded, words);
    StorePart<std::uint8_t>(words, part, data);
    scale.Store(part, group, scales);
  }
}

template <class Code>
FLASHOPTIM_FN void StoreSecond(void* data, float* scales, std::uint64_t group, const Part& part,
                               const PartRandom& random, core::Purpose purpose, const Values& v) {
  Words8 encoded;
  if constexpr (std::is_void_v<Code>) {
    FLASHOPTIM_FOR_ELEMENTS { encoded[k] = CanonicalBits<CarefulLanes>(v[k]); }
    StorePart<std::uint32_t>(encoded, part, data);
  } else {
    std::uint32_t max_bits = Code::kFloor;
    bool flagged = false;
    Values measured;
    FLASHOPTIM_FOR_ELEMENTS {
      measured[k] = Code::template Measured<CarefulLanes>(v[k]);
      if (k >= part.size) continue;
      if (IsFinite(v[k])) {
        max_bits = max(max_bits, __float_as_uint(measured[k]));
      } else {
        flagged = true;
      }
    }
    const GroupScale<Code> scale(max_bits, flagged);
    const typename Code::template Encoder<CarefulLanes> encoder(scale.bits);
    FLASHOPTIM_FOR_ELEMENTS {
      const std::uint32_t fixed =
          Code::template FixedPoint<CarefulLanes>(encoder, measured[k]) + random.Byte(purpose, k);
      encoded[k] = IsFinite(v[k]) ? fixed >> 8 : 0U;
    }
    Words2 words;
    PackBytes(encoded, words);
    StorePart<std::uint8_t>(words, part, data);
    scale.Store(part, group, scales);
  }
}

// One element of a rule: moments and weight in place. `x` is the maximum of the second moment.
template <KernelRule kRule, bool kPlainGradient, class L>
FLASHOPTIM_FN void UpdateElement(const LaneScalars<L>& h, bool nesterov, float g, float& w,
                                 float& m, float& v, float& x) {
  if constexpr (!kPlainGradient) g = EffectiveGradient<L>(h, w, g);
  if constexpr (kRule == KernelRule::kSgd) {
    w = SgdWeight<L>(h, w, g);
  } else if constexpr (kRule == KernelRule::kSgdMomentum) {
    w = SgdMomentumWeight<L>(h, nesterov, w, g, m);
  } else if constexpr (kRule == KernelRule::kLion) {
    w = LionWeight<L>(h, w, g, m);
  } else {
    AdamMoments<L>(h, g, m, v);
    if constexpr (kRule == KernelRule::kAdamMaximum) {
      x = MaximumMoment<L>(x, v);
      w = AdamWeight<L>(h, w, m, x);
    } else {
      w = AdamWeight<L>(h, w, m, v);
    }
  }
}

template <KernelRule kRule, class First, class Second>
FLASHOPTIM_FN void StepGroupOfCodec(const TensorTask& task, const core::StepScalars& scalars,
                                    const std::uint32_t* seeds, std::uint64_t group, bool active) {
  const Part part = PartOf(task, group, active);
  const std::uint64_t whole = core::GroupInWhole(task, group);
  const PartRandom random(seeds, whole, part.position);
  const LaneScalars<CarefulLanes> h(scalars);
  Values w;
  Values g;
  Values m;
  Values v;
  Values x;
  LoadMasters(task, part, w);
  LoadGradients(task, part, g);
  if constexpr (HasFirst(kRule)) LoadFirst<First>(task.first, task.first_scale, group, part, m);
  if constexpr (HasSecond(kRule))
    LoadSecond<Second>(task.second, task.second_scale, group, part, v);
  if constexpr (HasMaximum(kRule)) {
    LoadSecond<Second>(task.maximum, task.maximum_scale, group, part, x);
  }
  FLASHOPTIM_FOR_ELEMENTS {
    UpdateElement<kRule, false, CarefulLanes>(h, task.nesterov, g[k], w[k], m[k], v[k], x[k]);
  }
  StoreMasters<std::is_void_v<First>>(task, whole, part, random, w);
  if constexpr (HasFirst(kRule)) StoreFirst<First>(task.first, task.first_scale, group, part, m);
  if constexpr (HasSecond(kRule)) {
    StoreSecond<Second>(task.second, task.second_scale, group, part, random, core::kSecondMoment,
                        v);
  }
  if constexpr (HasMaximum(kRule)) {
    StoreSecond<Second>(task.maximum, task.maximum_scale, group, part, random, core::kMaximum, x);
  }
}

/// What a fast kernel knows of its tensors, and a careful one does not. The careful step is
/// compiled into every kernel, most of whose code it is.
template <class FirstCode, class SecondCode>
struct OneCodec {
  using First = FirstCode;
  using Second = SecondCode;
};
struct AnyCodec {};

/// Steps group `group`; `active` is false in lanes beyond the tensor's last group, whose `group` is
/// any group of the tensor. Kept out of line: it is rare, and its registers must not burden the
/// fast path.
template <KernelRule kRule, class Codecs>
__device__ __noinline__ void StepGroupCarefully(const TensorTask& task,
                                                const core::StepScalars& scalars,
                                                const std::uint32_t* seeds, std::uint64_t group,
                                                bool active) {
  if constexpr (!HasFirst(kRule)) {
    StepGroupOfCodec<kRule, void, void>(task, scalars, seeds, group, active);
  } else if constexpr (!std::is_same_v<Codecs, AnyCodec>) {
    StepGroupOfCodec<kRule, typename Codecs::First, typename Codecs::Second>(task, scalars, seeds,
                                                                             group, active);
  } else {
    switch (task.codec) {
      case Codec::kNone:
        return StepGroupOfCodec<kRule, void, void>(task, scalars, seeds, group, active);
      case Codec::kRoot:
        return StepGroupOfCodec<kRule, RootFirst, RootSecond>(task, scalars, seeds, group, active);
      case Codec::kSoftsign:
        return StepGroupOfCodec<kRule, SoftsignFirst, SoftsignSecond>(task, scalars, seeds, group,
                                                                      active);
    }
  }
}

}  // namespace flashoptim::cuda

#endif  // FLASHOPTIM_CUDA_CAREFUL_GROUP_CUH_

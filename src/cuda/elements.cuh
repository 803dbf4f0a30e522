// Eight elements of any dtype in a thread's registers, wherever they lie and however few are left.
#ifndef FLASHOPTIM_CUDA_ELEMENTS_CUH_
#define FLASHOPTIM_CUDA_ELEMENTS_CUH_

#include <cstdint>

#include "core/tensor_task.h"
#include "cuda/cuda_lanes.cuh"
#include "cuda/instructions.cuh"
#include "cuda/launch_table.h"

namespace flashoptim::cuda {

using core::KernelRule;
using core::TensorTask;

// Maximum over the eight threads of a group.
template <class T>
FLASHOPTIM_FN T GroupMaximum(T x) {
#pragma unroll
  for (unsigned lane = 1; lane < LaunchPolicy::kThreadsPerGroup; lane <<= 1) {
    x = max(x, __shfl_xor_sync(0xffffffffU, x, lane));
  }
  return x;
}

FLASHOPTIM_FN bool IsFinite(float x) {
  return (__float_as_uint(x) & kMagnitudeMask) < kInfinityBits;
}

// The elements of one thread.
struct Part {
  std::uint64_t offset;  // of the first in the tensor
  unsigned size;         // 0 to 8
  unsigned position;     // of the first in its group
};

FLASHOPTIM_FN Part PartOf(const TensorTask& task, std::uint64_t group, bool active) {
  const unsigned position = threadIdx.x % LaunchPolicy::kThreadsPerGroup * LaunchPolicy::kElements;
  if (task.row_length % kGroupSize == 0) {  // nearly all tensors: no division
    return {group * kGroupSize + position, active ? LaunchPolicy::kElements : 0, position};
  }
  const std::uint64_t groups_per_row = core::GroupsPerRow(task.row_length);
  const std::uint64_t row = group / groups_per_row;
  const std::uint64_t start = (group - row * groups_per_row) * kGroupSize + position;
  const std::uint64_t left = start < task.row_length && active ? task.row_length - start : 0;
  return {row * task.row_length + start,
          static_cast<unsigned>(min(left, std::uint64_t{LaunchPolicy::kElements})), position};
}

using Values = float[LaunchPolicy::kElements];

#define FLASHOPTIM_FOR_ELEMENTS \
  _Pragma("unroll") for (unsigned k = 0; k < LaunchPolicy::kElements; ++k)

template <class Use>
FLASHOPTIM_FN void WithFormat(const TensorTask& task, const Use& use) {
  const bool bfloat16 = task.weight_dtype == DType::kBFloat16;
  if (task.correction_bits == 0) {
    bfloat16 ? use(Bfloat16Format<0>()) : use(Float16Format<0>());
  } else if (task.correction_bits == 8) {
    bfloat16 ? use(Bfloat16Format<8>()) : use(Float16Format<8>());
  } else {
    bfloat16 ? use(Bfloat16Format<16>()) : use(Float16Format<16>());
  }
}

using Words2 = std::uint32_t[2];
using Words4 = std::uint32_t[4];
using Words8 = std::uint32_t[8];

// Loads pass the first-level cache by. They carry no hint to evict early, nor do stores: with one
// on both, though a step touches every byte once, it is 5 % slower on an H200.
FLASHOPTIM_FN void LoadVector(const void* p, Words2& words) {
  const uint2 x = __ldcg(static_cast<const uint2*>(p));
  words[0] = x.x;
  words[1] = x.y;
}
FLASHOPTIM_FN void StoreVector(const Words2& words, void* p) {
  *static_cast<uint2*>(p) = make_uint2(words[0], words[1]);
}
template <unsigned kWords>
FLASHOPTIM_FN void LoadVector(const void* p, std::uint32_t (&words)[kWords]) {
#pragma unroll
  for (unsigned i = 0; i < kWords; i += 4) {
    const uint4 x = __ldcg(static_cast<const uint4*>(p) + i / 4);
    words[i] = x.x;
    words[i + 1] = x.y;
    words[i + 2] = x.z;
    words[i + 3] = x.w;
  }
}
template <unsigned kWords>
FLASHOPTIM_FN void StoreVector(const std::uint32_t (&words)[kWords], void* p) {
#pragma unroll
  for (unsigned i = 0; i < kWords; i += 4) {
    static_cast<uint4*>(p)[i / 4] = make_uint4(words[i], words[i + 1], words[i + 2], words[i + 3]);
  }
}

template <unsigned kWords>
FLASHOPTIM_FN bool IsVector(const void* p, const Part& part) {
  constexpr unsigned kAlignment = kWords == 2 ? 8 : 16;
  return part.size == LaunchPolicy::kElements &&
         reinterpret_cast<std::uintptr_t>(p) % kAlignment == 0;
}

// The elements of a part, of type T, packed into words; those that are missing are 0.
template <class T, unsigned kWords = sizeof(T) * 2>
FLASHOPTIM_FN void LoadPart(const void* data, const Part& part, std::uint32_t (&words)[kWords]) {
  const T* p = static_cast<const T*>(data) + part.offset;
  if (IsVector<kWords>(p, part)) {
    LoadVector(p, words);
    return;
  }
#pragma unroll
  for (unsigned i = 0; i < kWords; ++i) words[i] = 0;
  FLASHOPTIM_FOR_ELEMENTS {
    constexpr unsigned kPerWord = 4 / sizeof(T);
    if (k < part.size) {
      words[k / kPerWord] |= static_cast<std::uint32_t>(p[k]) << (8 * sizeof(T) * (k % kPerWord));
    }
  }
}
template <class T, unsigned kWords = sizeof(T) * 2>
FLASHOPTIM_FN void StorePart(const std::uint32_t (&words)[kWords], const Part& part, void* data) {
  T* p = static_cast<T*>(data) + part.offset;
  if (IsVector<kWords>(p, part)) {
    StoreVector(words, p);
    return;
  }
  FLASHOPTIM_FOR_ELEMENTS {
    constexpr unsigned kPerWord = 4 / sizeof(T);
    if (k < part.size) {
      p[k] = static_cast<T>(words[k / kPerWord] >> (8 * sizeof(T) * (k % kPerWord)));
    }
  }
}

// Element k of packed words, zero-extended.
FLASHOPTIM_FN std::uint32_t ByteOf(const Words2& words, unsigned k) {
  return (words[k / 4] >> (8 * (k % 4))) & 0xffU;
}
FLASHOPTIM_FN std::uint32_t HalfOf(const Words4& words, unsigned k) {
  return k % 2 != 0 ? words[k / 2] >> 16 : words[k / 2] & 0xffffU;
}
// Packs byte kByte of each of eight words, 0 being the lowest; or the low halves.
template <unsigned kByte = 0>
FLASHOPTIM_FN void PackBytes(const Words8& x, Words2& words) {
  constexpr std::uint32_t kPair = 0x0040U + 0x0011U * kByte;
#pragma unroll
  for (unsigned q = 0; q < 2; ++q) {
    words[q] = Permute(Permute(x[4 * q], x[4 * q + 1], kPair),
                       Permute(x[4 * q + 2], x[4 * q + 3], kPair), 0x5410U);
  }
}
FLASHOPTIM_FN void PackHalves(const Words8& x, Words4& words) {
#pragma unroll
  for (unsigned p = 0; p < 4; ++p) words[p] = Permute(x[2 * p], x[2 * p + 1], 0x5410U);
}

FLASHOPTIM_FN void LoadGradients(const TensorTask& task, const Part& part, Values& g) {
  if (task.gradient_dtype == DType::kFloat32) {
    Words8 words;
    LoadPart<std::uint32_t>(task.gradient, part, words);
    FLASHOPTIM_FOR_ELEMENTS { g[k] = __uint_as_float(words[k]); }
    return;
  }
  Words4 words;
  LoadPart<std::uint16_t>(task.gradient, part, words);
  if (task.gradient_dtype == DType::kBFloat16) {
    FLASHOPTIM_FOR_ELEMENTS { g[k] = FloatFromBfloat16<CarefulLanes>(HalfOf(words, k)); }
  } else {
    FLASHOPTIM_FOR_ELEMENTS { g[k] = FloatFromFloat16<CarefulLanes>(HalfOf(words, k)); }
  }
}

FLASHOPTIM_FN void LoadMasters(const TensorTask& task, const Part& part, Values& w) {
  if (task.weight_dtype == DType::kFloat32) {
    Words8 words;
    LoadPart<std::uint32_t>(task.weight, part, words);
    FLASHOPTIM_FOR_ELEMENTS { w[k] = __uint_as_float(words[k]); }
    return;
  }
  Words4 weights;
  Words8 corrections;
  LoadPart<std::uint16_t>(task.weight, part, weights);
  if (task.correction_bits == 8) {
    Words2 words;
    LoadPart<std::uint8_t>(task.correction, part, words);
    FLASHOPTIM_FOR_ELEMENTS {
      corrections[k] = static_cast<std::uint32_t>(static_cast<std::int8_t>(ByteOf(words, k)));
    }
  } else if (task.correction_bits == 16) {
    Words4 words;
    LoadPart<std::uint16_t>(task.correction, part, words);
    FLASHOPTIM_FOR_ELEMENTS {
      corrections[k] = static_cast<std::uint32_t>(static_cast<std::int16_t>(HalfOf(words, k)));
    }
  } else {
    FLASHOPTIM_FOR_ELEMENTS { corrections[k] = 0; }
  }
  WithFormat(task, [&](auto format) {
    FLASHOPTIM_FOR_ELEMENTS {
      w[k] = JoinMaster<CarefulLanes, decltype(format)>(HalfOf(weights, k), corrections[k]);
    }
  });
}

// The random byte of element k of a part.
struct PartRandom {
  const std::uint32_t* seeds;
  std::uint32_t counter;
  std::uint32_t high;

  // `group` counts in the whole tensor.
  FLASHOPTIM_FN PartRandom(const std::uint32_t* stream_seeds, std::uint64_t group,
                           unsigned position)
      : seeds(stream_seeds) {
    const std::uint64_t first = 16 * group + position / 4;
    counter = static_cast<std::uint32_t>(first);
    high = Mix<CarefulLanes>(static_cast<std::uint32_t>(first >> 32));
  }

  FLASHOPTIM_FN std::uint32_t Byte(core::Purpose purpose, unsigned k) const {
    const std::uint32_t word = RandomWord<CarefulLanes>(counter + k / 4, seeds[purpose] ^ high);
    return (word >> (8 * (k % 4))) & 0xffU;
  }
};

// The random byte that element k of a part draws for its weight. `whole` is the index, in the whole
// tensor, of the part's group; the tensor may begin inside one.
template <bool kBeginsAnywhere>
FLASHOPTIM_FN std::uint32_t WeightByte(const TensorTask& task, std::uint64_t whole,
                                       const Part& part, const PartRandom& random,
                                       core::Purpose purpose, unsigned k) {
  if (!kBeginsAnywhere || task.first_in_group == 0) return random.Byte(purpose, k);
  const core::PlaceInWhole place = core::ElementInWhole(task, whole, part.position + k);
  return PartRandom(random.seeds, place.group, place.position).Byte(purpose, place.position % 4);
}

template <bool kBeginsAnywhere>
FLASHOPTIM_FN void StoreMasters(const TensorTask& task, std::uint64_t whole, const Part& part,
                                const PartRandom& random, const Values& w) {
  if (task.weight_dtype == DType::kFloat32) {
    Words8 words;
    FLASHOPTIM_FOR_ELEMENTS { words[k] = CanonicalBits<CarefulLanes>(w[k]); }
    StorePart<std::uint32_t>(words, part, task.weight);
    return;
  }
  Words8 weights;
  Words8 corrections;
  WithFormat(task, [&](auto format) {
    using Format = decltype(format);
    FLASHOPTIM_FOR_ELEMENTS {
      std::uint32_t increment = NearestIncrement<Format>();
      if (task.stochastic_weight) {
        increment = StochasticIncrement<CarefulLanes, Format>(
            WeightByte<kBeginsAnywhere>(task, whole, part, random, core::kWeightFirst, k),
            WeightByte<kBeginsAnywhere>(task, whole, part, random, core::kWeightSecond, k));
      }
      SplitMaster<CarefulLanes, Format>(w[k], increment, weights[k], corrections[k]);
    }
  });
  Words4 halves;
  PackHalves(weights, halves);
  StorePart<std::uint16_t>(halves, part, task.weight);
  if (task.correction_bits == 8) {
    Words2 bytes;
    PackBytes(corrections, bytes);
    StorePart<std::uint8_t>(bytes, part, task.correction);
  } else if (task.correction_bits == 16) {
    PackHalves(corrections, halves);
    StorePart<std::uint16_t>(halves, part, task.correction);
  }
}

}  // namespace flashoptim::cuda

#endif  // FLASHOPTIM_CUDA_ELEMENTS_CUH_

// The step of a whole group in registers: bf16 weights with a correction, bf16 gradients, aligned.
// It knows no special values: where it meets one, it writes nothing and says so.
#ifndef FLASHOPTIM_CUDA_FAST_GROUP_CUH_
#define FLASHOPTIM_CUDA_FAST_GROUP_CUH_

#include <math_constants.h>

#include <cstdint>

#include "core/tensor_task.h"
#include "cuda/careful_group.cuh"
#include "cuda/cuda_lanes.cuh"
#include "cuda/elements.cuh"
#include "cuda/launch_table.h"

namespace flashoptim::cuda {

// 16-bit element k in the upper half of a word.
FLASHOPTIM_FN std::uint32_t UpperHalf(const Words4& words, unsigned k) {
  return k % 2 != 0 ? words[k / 2] & 0xffff0000U : words[k / 2] << 16;
}

// The correction of kBits as stored: loads, places (format, 4.3) and packs it.
template <int kBits>
struct Corrections;

template <>
struct Corrections<8> {
  using Format = Bfloat16Format<8>;
  Words2 words;

  FLASHOPTIM_FN void Load(const void* base, std::uint64_t i) {
    LoadStream(static_cast<const std::int8_t*>(base) + i, words);
  }
  // Sign-extended and shifted by 8, in one permutation.
  FLASHOPTIM_FN std::uint32_t Placed(unsigned k) const {
    constexpr std::uint32_t kSelectors[4] = {0x8804U, 0x9914U, 0xaa24U, 0xbb34U};
    return Permute(words[k / 4], 0, kSelectors[k % 4]);
  }
  // From images with BiasedIncrement: sign bits come flipped.
  FLASHOPTIM_FN void Pack(const Words8& biased) {
#pragma unroll
    for (unsigned q = 0; q < 2; ++q) {
      words[q] =
          0x80808080U ^ Permute(Permute(biased[4 * q], biased[4 * q + 1], 0x0051U),
                                Permute(biased[4 * q + 2], biased[4 * q + 3], 0x0051U), 0x5410U);
    }
  }
  FLASHOPTIM_FN void Store(void* base, std::uint64_t i) const {
    StoreStream(words, static_cast<std::int8_t*>(base) + i);
  }
};

template <>
struct Corrections<16> {
  using Format = Bfloat16Format<16>;
  Words4 words;

  FLASHOPTIM_FN void Load(const void* base, std::uint64_t i) {
    LoadStream(static_cast<const std::int16_t*>(base) + i, words);
  }
  FLASHOPTIM_FN std::uint32_t Placed(unsigned k) const {
    return Permute(words[k / 2], 0, k % 2 != 0 ? 0xbb32U : 0x9910U);
  }
  // From images with BiasedIncrement: sign bits come flipped.
  FLASHOPTIM_FN void Pack(const Words8& biased) {
#pragma unroll
    for (unsigned p = 0; p < 4; ++p)
      words[p] = 0x80008000U ^ Permute(biased[2 * p], biased[2 * p + 1], 0x5410U);
  }
  FLASHOPTIM_FN void Store(void* base, std::uint64_t i) const {
    StoreStream(words, static_cast<std::int16_t*>(base) + i);
  }
};

// Hides where a value came from, so that what was computed from it before is not kept in registers
// but computed again.
FLASHOPTIM_FN std::uint32_t Opaque(std::uint32_t x) {
  asm volatile("" : "+r"(x));
  return x;
}

// Byte k of eight as a float: an image 2^23 + byte in one permutation, less 2^23. Conversion
// instructions run at a quarter of the rate. Signed bytes are flipped to unsigned ones first.
// `magic` is Opaque(kByteMagic): an instruction holds one constant, which had better be the
// selector.
constexpr std::uint32_t kByteMagic = 0x4b000000U;
FLASHOPTIM_FN float FloatOfByte(const Words2& words, unsigned k, std::uint32_t magic, float bias) {
  return __fadd_rn(__uint_as_float(Permute(words[k / 4], magic, 0x7440U + k % 4)), -bias);
}

// Moments of codec Code in registers.
template <class Code>
struct FirstMoments {
  using Encoder = typename Code::template Encoder<FastLanes>;
  Words2 words;
  std::uint32_t scale_bits;

  FLASHOPTIM_FN void Load(const void* codes, const float* scales, std::uint64_t i) {
    LoadStream(static_cast<const std::int8_t*>(codes) + i, words);
    scale_bits = __float_as_uint(scales[i / kGroupSize]);
  }
  FLASHOPTIM_FN bool Flagged() const { return (scale_bits & kScaleFlag) != 0; }
  FLASHOPTIM_FN void Decode(std::uint32_t magic, Values& m) const {
    const typename Code::template Decoder<FastLanes> decoder(scale_bits);
    const Words2 flipped = {words[0] ^ 0x80808080U, words[1] ^ 0x80808080U};
    FLASHOPTIM_FOR_ELEMENTS {
      m[k] = Code::template Decode<FastLanes>(decoder,
                                              FloatOfByte(flipped, k, magic, 8388608.0F + 128.0F));
    }
  }
  FLASHOPTIM_FN void Encode(std::uint32_t max_bits, const Values& m) {
    scale_bits = Code::ScaleBits(max_bits);
    const Encoder encoder(scale_bits);
#pragma unroll
    for (unsigned q = 0; q < 2; ++q) {
      Words4 codes;
#pragma unroll
      for (unsigned j = 0; j < 4; ++j) {
        codes[j] = Code::template Encode<FastLanes>(encoder, m[4 * q + j]);
      }
      words[q] = Permute(Permute(codes[0], codes[1], 0x0040U), Permute(codes[2], codes[3], 0x0040U),
                         0x5410U);
    }
  }
  FLASHOPTIM_FN void Store(void* codes, float* scales, std::uint64_t i) const {
    StoreStream(words, static_cast<std::int8_t*>(codes) + i);
    if (threadIdx.x % LaunchPolicy::kThreadsPerGroup == 0) {
      scales[i / kGroupSize] = __uint_as_float(scale_bits);
    }
  }
};

template <class Code>
struct SecondMoments {
  using Encoder = typename Code::template Encoder<FastLanes>;
  Words2 words;
  std::uint32_t scale_bits;

  FLASHOPTIM_FN void Load(const void* codes, const float* scales, std::uint64_t i) {
    LoadStream(static_cast<const std::uint8_t*>(codes) + i, words);
    scale_bits = __float_as_uint(scales[i / kGroupSize]);
  }
  FLASHOPTIM_FN bool Flagged() const { return (scale_bits & kScaleFlag) != 0; }
  FLASHOPTIM_FN void Decode(std::uint32_t magic, Values& v) const {
    const typename Code::template Decoder<FastLanes> decoder(scale_bits);
    FLASHOPTIM_FOR_ELEMENTS {
      v[k] = Code::template Decode<FastLanes>(decoder, FloatOfByte(words, k, magic, 8388608.0F));
    }
  }
  // Four random bytes are added to the 16-bit fields of two words in two additions.
  FLASHOPTIM_FN void Encode(std::uint32_t max_bits, const Values& measured, const Words2& random) {
    scale_bits = Code::ScaleBits(max_bits);
    const Encoder encoder(scale_bits);
#pragma unroll
    for (unsigned q = 0; q < 2; ++q) {
      Words4 fixed;
#pragma unroll
      for (unsigned j = 0; j < 4; ++j) {
        fixed[j] = Code::template FixedPoint<FastLanes>(encoder, measured[4 * q + j]);
      }
      const std::uint32_t low =
          Permute(fixed[0], fixed[1], 0x5410U) + Permute(random[q], 0, 0x4140U);
      const std::uint32_t high =
          Permute(fixed[2], fixed[3], 0x5410U) + Permute(random[q], 0, 0x4342U);
      words[q] = Permute(low, high, 0x7531U);
    }
  }
  FLASHOPTIM_FN void Store(void* codes, float* scales, std::uint64_t i) const {
    StoreStream(words, static_cast<std::uint8_t*>(codes) + i);
    if (threadIdx.x % LaunchPolicy::kThreadsPerGroup == 0) {
      scales[i / kGroupSize] = __uint_as_float(scale_bits);
    }
  }
};

/// What a thread reads of eight elements, before anything is decoded.
template <KernelRule kRule, class First, class Second, int kCorrectionBits>
struct RawElements {
  Words4 weights;
  Words4 gradients;
  Corrections<kCorrectionBits> corrections;
  FirstMoments<First> first;
  SecondMoments<Second> second;
  SecondMoments<Second> maximum;

  /// `i` is the first of the elements, in a tensor without short groups.
  FLASHOPTIM_FN void Load(const TensorTask& task, std::uint64_t i) {
    LoadStream(static_cast<const std::uint16_t*>(task.weight) + i, weights);
    LoadStream(static_cast<const std::uint16_t*>(task.gradient) + i, gradients);
    corrections.Load(task.correction, i);
    first.Load(task.first, task.first_scale, i);
    if constexpr (HasSecond(kRule)) second.Load(task.second, task.second_scale, i);
    if constexpr (HasMaximum(kRule)) maximum.Load(task.maximum, task.maximum_scale, i);
  }

  FLASHOPTIM_FN bool Flagged() const {
    bool flagged = first.Flagged();
    if constexpr (HasSecond(kRule)) flagged |= second.Flagged();
    if constexpr (HasMaximum(kRule)) flagged |= maximum.Flagged();
    return flagged;
  }
};

/// Steps the group that holds elements `i` to `i + 7`, which are in `raw`; false with nothing
/// written if some value of the group needs care. All 32 lanes of a warp must call it together;
/// lanes that are not `active` write nothing. The seeds are stream seeds with the counter's high
/// half mixed in.
template <KernelRule kRule, class First, class Second, int kCorrectionBits, bool kPlainGradient>
FLASHOPTIM_FN bool StepGroupFast(const TensorTask& task, const LaneScalars<FastLanes>& h,
                                 std::uint32_t second_seed, std::uint32_t maximum_seed,
                                 RawElements<kRule, First, Second, kCorrectionBits>& raw,
                                 std::uint64_t i, bool active) {
  using Format = typename Corrections<kCorrectionBits>::Format;
  Values m;
  Values v;
  Values x;
  Words8 biased;
  bool careful = raw.Flagged();
  const std::uint32_t magic = Opaque(kByteMagic);
  raw.first.Decode(magic, m);
  if constexpr (HasSecond(kRule)) raw.second.Decode(magic, v);
  if constexpr (HasMaximum(kRule)) raw.maximum.Decode(magic, x);
  float m_max = 0.0F;
  float v_max = 0.0F;
  float x_max = 0.0F;
  float product = 0.0F;
  float previous = 0.0F;
  FLASHOPTIM_FOR_ELEMENTS {
    // Without the check for stale corrections: they make NaN here.
    float w = __uint_as_float(UpperHalf(raw.weights, k) + raw.corrections.Placed(k));
    UpdateElement<kRule, kPlainGradient, FastLanes>(
        h, task.nesterov, __uint_as_float(UpperHalf(raw.gradients, k)), w, m[k], v[k], x[k]);
    // A sum of products of pairs is finite only if all weights are.
    if (k % 2 != 0) product = __fmaf_rn(w, previous, product);
    previous = w;
    biased[k] = __float_as_uint(w) + BiasedIncrement<Format>();
    m_max = fmaxf(m_max, fabsf(m[k]));
    if constexpr (HasSecond(kRule)) {
      v[k] = Second::template Measured<FastLanes>(v[k]);
      v_max = fmaxf(v_max, v[k]);
    }
    if constexpr (HasMaximum(kRule)) {
      x[k] = Second::template Measured<FastLanes>(x[k]);
      x_max = fmaxf(x_max, x[k]);
    }
  }
#pragma unroll
  for (unsigned p = 0; p < 4; ++p) {
    raw.weights[p] = Permute(biased[2 * p], biased[2 * p + 1], 0x7632U);
  }
  raw.corrections.Pack(biased);
  // fmaxf drops NaN; but a NaN moment makes a NaN weight.
  const float m_group = GroupMaximum(m_max);
  const float v_group = HasSecond(kRule) ? GroupMaximum(v_max) : 0.0F;
  const float x_group = HasMaximum(kRule) ? GroupMaximum(x_max) : 0.0F;
  const float largest = HasMaximum(kRule)  ? fmaxf(fmaxf(m_group, v_group), x_group)
                        : HasSecond(kRule) ? fmaxf(m_group, v_group)
                                           : m_group;
  careful |= !(fabsf(product) + largest < CUDART_INF_F);
  if (__any_sync(0xffffffffU, active && careful)) return false;
  if (!active) return true;

  StoreStream(raw.weights, static_cast<std::uint16_t*>(task.weight) + i);
  raw.corrections.Store(task.correction, i);
  raw.first.Encode(__float_as_uint(m_group), m);
  raw.first.Store(task.first, task.first_scale, i);
  const auto counter = static_cast<std::uint32_t>(16 * task.first_group + i / 4);
  if constexpr (HasSecond(kRule)) {
    const Words2 random = {RandomWord<FastLanes>(counter, second_seed),
                           RandomWord<FastLanes>(counter + 1, second_seed)};
    raw.second.Encode(__float_as_uint(v_group), v, random);
    raw.second.Store(task.second, task.second_scale, i);
  }
  if constexpr (HasMaximum(kRule)) {
    const Words2 random = {RandomWord<FastLanes>(counter, maximum_seed),
                           RandomWord<FastLanes>(counter + 1, maximum_seed)};
    raw.maximum.Encode(__float_as_uint(x_group), x, random);
    raw.maximum.Store(task.maximum, task.maximum_scale, i);
  }
  return true;
}

}  // namespace flashoptim::cuda

#endif  // FLASHOPTIM_CUDA_FAST_GROUP_CUH_

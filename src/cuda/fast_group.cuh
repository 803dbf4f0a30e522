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
#include "cuda/instructions.cuh"
#include "cuda/launch_table.h"

namespace flashoptim::cuda {

// An address in a block's part of an array. The array's is the same for all threads, which then
// keep and add 32 bits each.
FLASHOPTIM_FN const void* AtByte(const void* base, std::uint32_t offset) {
  return static_cast<const char*>(base) + offset;
}
FLASHOPTIM_FN void* AtByte(void* base, std::uint32_t offset) {
  return static_cast<char*>(base) + offset;
}

// A block's part of a moment.
struct MomentArrays {
  void* codes;
  void* scales;

  FLASHOPTIM_FN MomentArrays(void* all_codes, float* all_scales, std::uint64_t first_group)
      : codes(static_cast<std::uint8_t*>(all_codes) + first_group * kGroupSize),
        scales(all_scales + first_group) {}
  FLASHOPTIM_FN std::uint32_t* Scale(std::uint32_t i) const {
    return static_cast<std::uint32_t*>(
        AtByte(scales, static_cast<std::uint32_t>(i / kGroupSize * 4)));
  }
};

// A block's part of a tensor without short groups.
struct BlockArrays {
  void* weight;
  void* correction;
  const void* gradient;
  MomentArrays first;
  MomentArrays second;
  MomentArrays maximum;

  // Moments that the rule does not keep are null, to which nothing may be added.
  FLASHOPTIM_FN BlockArrays(const TensorTask& task, std::uint64_t first_group, KernelRule rule,
                            int correction_bits)
      : weight(static_cast<std::uint16_t*>(task.weight) + first_group * kGroupSize),
        correction(static_cast<std::uint8_t*>(task.correction) +
                   first_group * kGroupSize * static_cast<unsigned>(correction_bits / 8)),
        gradient(static_cast<const std::uint16_t*>(task.gradient) + first_group * kGroupSize),
        first(task.first, task.first_scale, first_group),
        second(task.second, task.second_scale, HasSecond(rule) ? first_group : 0),
        maximum(task.maximum, task.maximum_scale, HasMaximum(rule) ? first_group : 0) {}
};

// The low halves of quads' counters, whose high half all groups of a tensor share: others are not
// stepped here. `i` is the quad's first element, counted from the block's first.
template <bool kPartsOfRows>
class QuadCounters {
 public:
  FLASHOPTIM_FN QuadCounters(const TensorTask& task, std::uint64_t first_group)
      : first_(static_cast<std::uint32_t>(16 * (task.first_group + first_group))) {}
  FLASHOPTIM_FN std::uint32_t At(std::uint32_t i) const { return first_ + i / 4; }

 private:
  std::uint32_t first_;
};

// Of a tensor that is a part of several rows of the whole. What it needs stays in the table, where
// it takes no registers.
template <>
class QuadCounters<true> {
 public:
  FLASHOPTIM_FN QuadCounters(const TensorTask& task, std::uint64_t first_group)
      : task_(task), first_group_(static_cast<std::uint32_t>(first_group)) {}
  FLASHOPTIM_FN std::uint32_t At(std::uint32_t i) const {
    const auto size = static_cast<std::uint32_t>(kGroupSize);
    const std::uint32_t group = first_group_ + i / size;
    const auto per_row = static_cast<std::uint32_t>(task_.row_length / kGroupSize);
    const std::uint32_t gap = static_cast<std::uint32_t>(task_.group_stride) - per_row;
    const auto first = static_cast<std::uint32_t>(task_.first_group);
    return 16 * (first + group + group / per_row * gap) + i % size / 4;
  }

 private:
  const TensorTask& task_;
  std::uint32_t first_group_;
};

// Stream seeds with the counter's high half mixed in.
struct GroupSeeds {
  std::uint32_t second = 0;
  std::uint32_t maximum = 0;
  std::uint32_t weight = 0;

  FLASHOPTIM_FN GroupSeeds(const TensorTask& task, const std::uint32_t* seeds, KernelRule rule,
                           bool stochastic_weight) {
    const std::uint32_t high = Mix<FastLanes>(static_cast<std::uint32_t>(task.first_group >> 28));
    if (HasSecond(rule)) second = Opaque(seeds[core::kSecondMoment] ^ high);
    if (HasMaximum(rule)) maximum = Opaque(seeds[core::kMaximum] ^ high);
    if (stochastic_weight) weight = Opaque(seeds[core::kWeightFirst] ^ high);
  }
};

// 16-bit element k in the upper half of a word.
FLASHOPTIM_FN std::uint32_t UpperHalf(const Words4& words, unsigned k) {
  return k % 2 != 0 ? words[k / 2] & 0xffff0000U : words[k / 2] << 16;
}

// The sum of byte k of a word and of an image, in one instruction.
FLASHOPTIM_FN std::uint32_t AddByte(std::uint32_t word, unsigned k, std::uint32_t image) {
  return __dp4a(word, 1U << (8 * k), image);
}

// The correction of kBits as stored: loads it, places it (format, 4.3), and packs it from rounded
// images.
template <int kBits>
struct Corrections;

template <>
struct Corrections<8> {
  using Format = Bfloat16Format<8>;
  Words2 words;

  FLASHOPTIM_FN void Load(const void* base, std::uint32_t i) { LoadVector(AtByte(base, i), words); }
  // Sign-extended and shifted by 8, in one permutation.
  FLASHOPTIM_FN std::uint32_t Placed(unsigned k) const {
    constexpr std::uint32_t kSelectors[4] = {0x8804U, 0x9914U, 0xaa24U, 0xbb34U};
    return Permute(words[k / 4], 0, kSelectors[k % 4]);
  }
  FLASHOPTIM_FN void Pack(const Words8& rounded) { PackBytes<1>(rounded, words); }
  FLASHOPTIM_FN void Store(void* base, std::uint32_t i) const {
    StoreVector(words, AtByte(base, i));
  }
};

template <>
struct Corrections<16> {
  using Format = Bfloat16Format<16>;
  Words4 words;

  FLASHOPTIM_FN void Load(const void* base, std::uint32_t i) {
    LoadVector(AtByte(base, 2 * i), words);
  }
  FLASHOPTIM_FN std::uint32_t Placed(unsigned k) const {
    return Permute(words[k / 2], 0, k % 2 != 0 ? 0xbb32U : 0x9910U);
  }
  FLASHOPTIM_FN void Pack(const Words8& rounded) { PackHalves(rounded, words); }
  FLASHOPTIM_FN void Store(void* base, std::uint32_t i) const {
    StoreVector(words, AtByte(base, 2 * i));
  }
};

// Byte k of eight as a float: an image 2^23 + byte in one permutation, less 2^23. Conversion
// instructions run at a quarter of the rate. Signed bytes are flipped to unsigned ones first.
// `magic` is Opaque(kByteMagic): an instruction holds one constant, which had better be the
// selector.
constexpr std::uint32_t kByteMagic = 0x4b000000U;
FLASHOPTIM_FN float FloatOfByte(const Words2& words, unsigned k, std::uint32_t magic, float bias) {
  return __fadd_rn(__uint_as_float(Permute(words[k / 4], magic, 0x7440U + k % 4)), -bias);
}

// A moment in registers: one byte per element, and the scale of the group.
struct StoredMoment {
  Words2 words;
  std::uint32_t scale_bits;

  FLASHOPTIM_FN void Load(const MomentArrays& arrays, std::uint32_t i) {
    LoadVector(AtByte(arrays.codes, i), words);
    scale_bits = *arrays.Scale(i);
  }
  FLASHOPTIM_FN bool Flagged() const { return (scale_bits & kScaleFlag) != 0; }
  FLASHOPTIM_FN void Store(const MomentArrays& arrays, std::uint32_t i) const {
    StoreVector(words, AtByte(arrays.codes, i));
    if (threadIdx.x % LaunchPolicy::kThreadsPerGroup == 0) *arrays.Scale(i) = scale_bits;
  }
};

template <class Code>
struct FirstMoments : StoredMoment {
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
    const typename Code::template Encoder<FastLanes> encoder(scale_bits);
    Words8 codes;
    FLASHOPTIM_FOR_ELEMENTS { codes[k] = Code::template Encode<FastLanes>(encoder, m[k]); }
    PackBytes(codes, words);
  }
};

template <class Code>
struct SecondMoments : StoredMoment {
  FLASHOPTIM_FN void Decode(std::uint32_t magic, Values& v) const {
    const typename Code::template Decoder<FastLanes> decoder(scale_bits);
    FLASHOPTIM_FOR_ELEMENTS {
      v[k] = Code::template Decode<FastLanes>(decoder, FloatOfByte(words, k, magic, 8388608.0F));
    }
  }
  // Four random bytes are added to the 16-bit fields of two words in two additions.
  FLASHOPTIM_FN void Encode(std::uint32_t max_bits, const Values& measured, const Words2& random) {
    scale_bits = Code::ScaleBits(max_bits);
    const typename Code::template Encoder<FastLanes> encoder(scale_bits);
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

  /// `i` is the first of the elements, counted from the block's first.
  FLASHOPTIM_FN void Load(const BlockArrays& arrays, std::uint32_t i) {
    LoadVector(AtByte(arrays.weight, 2 * i), weights);
    LoadVector(AtByte(arrays.gradient, 2 * i), gradients);
    corrections.Load(arrays.correction, i);
    first.Load(arrays.first, i);
    if constexpr (HasSecond(kRule)) second.Load(arrays.second, i);
    if constexpr (HasMaximum(kRule)) maximum.Load(arrays.maximum, i);
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
/// lanes that are not `active` write nothing.
template <KernelRule kRule, class First, class Second, int kCorrectionBits, bool kPlainGradient,
          bool kStochasticWeight, class Counters>
FLASHOPTIM_FN bool StepGroupFast(const BlockArrays& arrays, const LaneScalars<FastLanes>& h,
                                 bool nesterov, const GroupSeeds& seeds, const Counters& counters,
                                 RawElements<kRule, First, Second, kCorrectionBits>& raw,
                                 std::uint32_t i, bool active) {
  using Format = typename Corrections<kCorrectionBits>::Format;
  static_assert(!kStochasticWeight || Format::kDropped == 8);
  Values m;
  Values v;
  Values x;
  Words8 rounded;
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
  std::uint32_t random_weights = 0;
  FLASHOPTIM_FOR_ELEMENTS {
    // Without the check for stale corrections: they make NaN here.
    float w = __uint_as_float(UpperHalf(raw.weights, k) + raw.corrections.Placed(k));
    UpdateElement<kRule, kPlainGradient, FastLanes>(
        h, nesterov, __uint_as_float(UpperHalf(raw.gradients, k)), w, m[k], v[k], x[k]);
    // A sum of products of pairs is finite only if all weights are.
    if (k % 2 != 0) product = __fmaf_rn(w, previous, product);
    previous = w;
    if constexpr (kStochasticWeight) {
      if (k % 4 == 0) random_weights = RandomWord<FastLanes>(counters.At(i) + k / 4, seeds.weight);
      rounded[k] = AddByte(random_weights, k % 4, __float_as_uint(w));
    } else {
      rounded[k] = __float_as_uint(w) + NearestIncrement<Format>();
    }
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
    // Two additions per weight: with the bias in `rounded` already, the Adam kernel spills.
    raw.weights[p] = Permute(rounded[2 * p] + BiasOfWeight<Format>(),
                             rounded[2 * p + 1] + BiasOfWeight<Format>(), 0x7632U);
  }
  raw.corrections.Pack(rounded);
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

  StoreVector(raw.weights, AtByte(arrays.weight, 2 * i));
  raw.corrections.Store(arrays.correction, i);
  raw.first.Encode(__float_as_uint(m_group), m);
  raw.first.Store(arrays.first, i);
  const std::uint32_t counter = counters.At(i);
  if constexpr (HasSecond(kRule)) {
    const Words2 random = {RandomWord<FastLanes>(counter, seeds.second),
                           RandomWord<FastLanes>(counter + 1, seeds.second)};
    raw.second.Encode(__float_as_uint(v_group), v, random);
    raw.second.Store(arrays.second, i);
  }
  if constexpr (HasMaximum(kRule)) {
    const Words2 random = {RandomWord<FastLanes>(counter, seeds.maximum),
                           RandomWord<FastLanes>(counter + 1, seeds.maximum)};
    raw.maximum.Encode(__float_as_uint(x_group), x, random);
    raw.maximum.Store(arrays.maximum, i);
  }
  return true;
}

}  // namespace flashoptim::cuda

#endif  // FLASHOPTIM_CUDA_FAST_GROUP_CUH_

// Weights and moments of one group between memory and floats, one element at a time, with every
// special case of docs/format.md. The scalar reference and the conversions are made of these.
#ifndef FLASHOPTIM_CPU_SCALAR_CODECS_H_
#define FLASHOPTIM_CPU_SCALAR_CODECS_H_

#include <cstdint>

#include "core/tensor_task.h"

namespace flashoptim::cpu {

/// Elements [offset, offset + size) of a tensor, in memory order; at most a group.
struct Span {
  std::uint64_t offset;
  unsigned size;
};

/// Where group `group` of a tensor lies.
Span GroupSpan(std::uint64_t row_length, std::uint64_t group);

/// The random bytes of one group (docs/format.md, section 3). `group` counts in the whole tensor.
class GroupRandom {
 public:
  GroupRandom(const std::uint32_t (&stream_seeds)[4], std::uint64_t group);

  std::uint32_t Byte(core::Purpose purpose, unsigned position) const;

 private:
  const std::uint32_t (&stream_seeds_)[4];
  std::uint64_t counter_;
  std::uint32_t high_;
};

/// Element i of a tensor of any dtype.
float LoadFloat(const void* data, DType dtype, std::uint64_t i);

/// A weight with its correction, wherever they lie.
struct SplitWeights {
  void* weight;
  DType dtype;
  void* correction;
  std::uint8_t correction_bits;
};

/// Master weight of element i.
float LoadMaster(const SplitWeights& weights, std::uint64_t i);

/// Splits and stores the master weight of element i, at `position` of its group. Rounds to nearest
/// if `random` is null.
void StoreMaster(const SplitWeights& weights, std::uint64_t i, float master,
                 const GroupRandom* random, unsigned position);

/// Moments of one group; `scale` is null for Codec::kNone. A null `random` rounds to nearest.
void DecodeFirst(Codec codec, const void* data, const float* scale, Span span, float* moment);
void DecodeSecond(Codec codec, const void* data, const float* scale, Span span, float* moment);
void EncodeFirst(Codec codec, void* data, float* scale, Span span, const float* moment);
void EncodeSecond(Codec codec, void* data, float* scale, Span span, const float* moment,
                  const GroupRandom* random, core::Purpose purpose);

}  // namespace flashoptim::cpu

#endif  // FLASHOPTIM_CPU_SCALAR_CODECS_H_

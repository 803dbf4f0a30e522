// Conversions between stored state and plain floats, in host memory. They round to nearest.
#ifndef FLASHOPTIM_CONVERT_H_
#define FLASHOPTIM_CONVERT_H_

#include <cstdint>

#include "flashoptim/layout.h"
#include "flashoptim/types.h"

namespace flashoptim {

/// Which of the two kinds of moment a tensor of codes holds.
enum class Moment : std::uint8_t {
  kFirst = 0,   ///< signed, int8: exp_avg, momentum_buffer
  kSecond = 1,  ///< uint8: exp_avg_sq, max_exp_avg_sq
};

/// A 16-bit weight with its correction (docs/format.md, section 4); fp32 weights have none.
struct WeightStorage {
  void* weight = nullptr;
  DType dtype = DType::kFloat32;
  void* correction = nullptr;
  std::int32_t correction_bits = 0;  ///< 0, 8 or 16
};

/// Master weights of `count` elements as fp32. Throws std::invalid_argument for an inconsistent
/// storage.
void JoinMasterWeights(const WeightStorage& source, std::uint64_t count, float* master);

/// Splits `count` fp32 master weights into weight and correction. Same errors.
void SplitMasterWeights(const float* master, std::uint64_t count, const WeightStorage& target);

/// Moments of a whole tensor as fp32. `scales` is [rows, groups_per_row], null for Codec::kNone.
void DecodeMoments(Moment moment, Codec codec, const Geometry& geometry, const void* codes,
                   const float* scales, float* values);

/// Codes and scales of a whole tensor of fp32 moments. Second moments below 2^-100 count as 2^-100.
/// Decoding and encoding again gives the same bytes.
void EncodeMoments(Moment moment, Codec codec, const Geometry& geometry, const float* values,
                   void* codes, float* scales);

}  // namespace flashoptim

#endif  // FLASHOPTIM_CONVERT_H_

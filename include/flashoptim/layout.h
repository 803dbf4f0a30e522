// How a tensor's state is laid out (docs/format.md, sections 2, 7 and 9).
#ifndef FLASHOPTIM_LAYOUT_H_
#define FLASHOPTIM_LAYOUT_H_

#include <cstdint>
#include <span>

#include "flashoptim/types.h"

namespace flashoptim {

/// A tensor read as a matrix in memory order.
struct Geometry {
  std::uint64_t rows = 0;
  std::uint64_t row_length = 0;
  std::uint64_t groups_per_row = 0;
};

/// The geometry of a dense tensor. `sizes` and `strides` are in elements, one per dimension, as
/// torch gives them. Throws std::invalid_argument if the tensor has holes, overlaps, or negative
/// numbers.
Geometry GeometryOf(std::span<const std::int64_t> sizes, std::span<const std::int64_t> strides);

/// The codec that a tensor really gets: `none` where quantising gains nothing (docs/format.md,
/// section 2), else `asked`. `dimensions` and `geometry` are those of the whole tensor.
Codec EffectiveCodec(Codec asked, std::uint64_t dimensions, const Geometry& geometry);

/// Value of a fresh second-moment scale and of a fresh first-moment scale.
float FreshFirstScale();
float FreshSecondScale(Codec codec);

}  // namespace flashoptim

#endif  // FLASHOPTIM_LAYOUT_H_

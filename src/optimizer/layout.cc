#include "flashoptim/layout.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <stdexcept>
#include <string>
#include <vector>

#include "core/tensor_task.h"
#include "cpu/scalar.h"
#include "optimizer/validate.h"

namespace flashoptim {
namespace {

// Tensors of up to this many elements and at most one dimension stay in fp32: norms and biases,
// under 0.1 % of a model.
constexpr std::uint64_t kSmallVector = 65536;
constexpr std::uint64_t kShortestQuantisedRow = 4;

std::string Join(std::span<const std::int64_t> values) {
  std::string text = "[";
  for (std::size_t i = 0; i < values.size(); ++i) {
    text += (i == 0 ? "" : ", ") + std::to_string(values[i]);
  }
  return text + "]";
}

// Dimensions from the innermost outwards. The stride of a dimension of one element may be any
// number and must not decide: those come first, but for dimension 0, which is the outermost one as
// it is in a contiguous tensor.
std::vector<std::size_t> MemoryOrder(std::span<const std::int64_t> sizes,
                                     std::span<const std::int64_t> strides) {
  const auto place = [&](std::size_t d) {
    if (sizes[d] != 1) return strides[d];
    return d == 0 ? std::numeric_limits<std::int64_t>::max() : std::int64_t{-1};
  };
  std::vector<std::size_t> order(strides.size());
  std::iota(order.rbegin(), order.rend(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return place(a) < place(b); });
  return order;
}

// Whether walking the dimensions in this order, innermost first, meets every element once.
bool IsDense(std::span<const std::int64_t> sizes, std::span<const std::int64_t> strides,
             const std::vector<std::size_t>& order) {
  std::int64_t expected = 1;
  for (const std::size_t d : order) {
    if (sizes[d] != 1 && strides[d] != expected) return false;
    expected *= sizes[d];
  }
  return true;
}

}  // namespace

Geometry GeometryOf(std::span<const std::int64_t> sizes, std::span<const std::int64_t> strides) {
  return GeometryOfNamed("", sizes, strides);
}

Geometry GeometryOfNamed(const std::string& whose, std::span<const std::int64_t> sizes,
                         std::span<const std::int64_t> strides) {
  if (sizes.size() != strides.size()) {
    throw std::invalid_argument(whose + "a tensor needs one stride per dimension; sizes " +
                                Join(sizes) + ", strides " + Join(strides));
  }
  for (const std::int64_t size : sizes) {
    if (size < 0) throw std::invalid_argument(whose + "negative size in " + Join(sizes));
  }
  if (std::find(sizes.begin(), sizes.end(), 0) != sizes.end()) return {};

  std::uint64_t elements = 1;
  for (const std::int64_t size : sizes) elements *= static_cast<std::uint64_t>(size);

  std::vector<std::size_t> row_major(sizes.size());
  std::iota(row_major.rbegin(), row_major.rend(), std::size_t{0});
  const auto memory_order = MemoryOrder(sizes, strides);
  const bool contiguous = IsDense(sizes, strides, row_major);
  if (!contiguous && !IsDense(sizes, strides, memory_order)) {
    throw std::invalid_argument(whose + "sizes " + Join(sizes) + " with strides " + Join(strides) +
                                " have holes or overlaps; make the tensor dense, for instance with "
                                ".contiguous()");
  }
  std::uint64_t rows = 1;
  if (sizes.size() > 1) {
    rows = static_cast<std::uint64_t>(sizes[contiguous ? 0 : memory_order.back()]);
  }
  const std::uint64_t row_length = elements / rows;
  return {rows, row_length, core::GroupsPerRow(row_length)};
}

Codec EffectiveCodec(Codec asked, std::uint64_t dimensions, const Geometry& geometry) {
  const bool small_vector = dimensions <= 1 && geometry.row_length <= kSmallVector;
  const bool gains_nothing = small_vector || geometry.row_length < kShortestQuantisedRow;
  return gains_nothing ? Codec::kNone : asked;
}

float FreshFirstScale() { return scalar::Lanes::AsFloat(scalar::kFirstScaleFloor); }

float FreshSecondScale(Codec codec) {
  return scalar::Lanes::AsFloat(codec == Codec::kSoftsign ? scalar::SoftsignSecond::kFloor
                                                          : scalar::RootSecond::kFloor);
}

}  // namespace flashoptim

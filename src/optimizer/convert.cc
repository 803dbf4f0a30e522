#include "flashoptim/convert.h"

#include <algorithm>
#include <stdexcept>
#include <string>

#include "cpu/scalar.h"
#include "cpu/scalar_codecs.h"
#include "cpu/thread_pool.h"

namespace flashoptim {
namespace {

constexpr std::uint64_t kGroupsPerTask = 1024;

// An empty tensor needs no addresses.
cpu::SplitWeights Checked(const WeightStorage& storage, std::uint64_t count) {
  const bool corrected = storage.correction_bits != 0;
  if (storage.correction_bits != 0 && storage.correction_bits != 8 &&
      storage.correction_bits != 16) {
    throw std::invalid_argument("correction_bits must be 0, 8 or 16, not " +
                                std::to_string(storage.correction_bits));
  }
  if (corrected && storage.dtype == DType::kFloat32) {
    throw std::invalid_argument("an fp32 weight takes no correction");
  }
  if (count != 0 && corrected != (storage.correction != nullptr)) {
    throw std::invalid_argument(corrected ? "the correction is missing"
                                          : "the correction must be null with correction_bits 0");
  }
  return {storage.weight, storage.dtype, storage.correction,
          static_cast<std::uint8_t>(storage.correction_bits)};
}

// Calls body(group) for all groups of a tensor, in parallel.
template <class Body>
void ForGroups(std::uint64_t groups, const Body& body) {
  auto run = [&](std::uint64_t task) {
    const std::uint64_t end = std::min(groups, (task + 1) * kGroupsPerTask);
    for (std::uint64_t group = task * kGroupsPerTask; group < end; ++group) body(group);
  };
  cpu::ParallelFor((groups + kGroupsPerTask - 1) / kGroupsPerTask, run);
}

// The same for a flat tensor of `count` elements, one at a time.
template <class Body>
void ForElements(std::uint64_t count, const Body& body) {
  ForGroups((count + kGroupSize - 1) / kGroupSize, [&](std::uint64_t group) {
    const std::uint64_t end = std::min(count, (group + 1) * kGroupSize);
    for (std::uint64_t i = group * kGroupSize; i < end; ++i) body(i);
  });
}

void CheckScales(Codec codec, const Geometry& geometry, const float* scales) {
  if (geometry.rows != 0 && (codec == Codec::kNone) != (scales == nullptr)) {
    throw std::invalid_argument(scales == nullptr ? "the scales are missing"
                                                  : "codec none takes no scales");
  }
}

}  // namespace

void JoinMasterWeights(const WeightStorage& source, std::uint64_t count, float* master) {
  const cpu::SplitWeights weights = Checked(source, count);
  ForElements(count, [&](std::uint64_t i) { master[i] = cpu::LoadMaster(weights, i); });
}

void SplitMasterWeights(const float* master, std::uint64_t count, const WeightStorage& target) {
  const cpu::SplitWeights weights = Checked(target, count);
  ForElements(count, [&](std::uint64_t i) { cpu::StoreMaster(weights, i, master[i], nullptr, 0); });
}

void DecodeMoments(Moment moment, Codec codec, const Geometry& geometry, const void* codes,
                   const float* scales, float* values) {
  CheckScales(codec, geometry, scales);
  ForGroups(geometry.rows * geometry.groups_per_row, [&](std::uint64_t group) {
    const cpu::Span span = cpu::GroupSpan(geometry.row_length, group);
    const float* scale = scales == nullptr ? nullptr : scales + group;
    const auto decode = moment == Moment::kFirst ? cpu::DecodeFirst : cpu::DecodeSecond;
    decode(codec, codes, scale, span, values + span.offset);
  });
}

void EncodeMoments(Moment moment, Codec codec, const Geometry& geometry, const float* values,
                   void* codes, float* scales) {
  CheckScales(codec, geometry, scales);
  ForGroups(geometry.rows * geometry.groups_per_row, [&](std::uint64_t group) {
    const cpu::Span span = cpu::GroupSpan(geometry.row_length, group);
    float* scale = scales == nullptr ? nullptr : scales + group;
    const float* source = values + span.offset;
    if (moment == Moment::kFirst) {
      cpu::EncodeFirst(codec, codes, scale, span, source);
      return;
    }
    float floored[kGroupSize];
    for (unsigned i = 0; i < span.size; ++i) {
      // Not std::max: a NaN must stay one. Plain moments may be zero; codes cannot say so.
      floored[i] = codec != Codec::kNone && source[i] < scalar::kSecondMomentFloor
                       ? scalar::kSecondMomentFloor
                       : source[i];
    }
    cpu::EncodeSecond(codec, codes, scale, span, floored, nullptr, core::kSecondMoment);
  });
}

}  // namespace flashoptim

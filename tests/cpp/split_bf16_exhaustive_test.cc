// Every float through the split into bf16 and a correction (docs/format.md, 4.2 to 4.5).
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>

#include "exhaustive.h"

namespace flashoptim {
namespace {

using testing::Choose;
using testing::Distance;
using testing::If;
using testing::IsNan;
using testing::RoundTrip;

// Bits of a violation.
constexpr std::uint32_t kNanIsNotCanonical = 1;
constexpr std::uint32_t kJoinedIsWrong = 2;
constexpr std::uint32_t kWeightIsNotNearest = 4;
constexpr std::uint32_t kNotMonotonic = 8;
constexpr std::uint32_t kErrorIsTooLarge = 16;

// The bf16 nearest to a float, ties away from zero.
std::uint32_t CastAway(std::uint32_t image) {
  const std::uint32_t below = image >> 16;
  return (image & 0xffffU) < 0x8000U ? below : below + 1U;
}

std::uint32_t NanViolations(const RoundTrip& trip) {
  const auto correction = static_cast<std::uint32_t>(trip.correction);
  const std::uint32_t difference =
      (trip.weight ^ 0x7fc0U) | correction | (trip.joined ^ 0x7fc00000U);
  return If(difference != 0, kNanIsNotCanonical);
}

float Value(std::uint32_t image) { return std::bit_cast<float>(image); }

// 2^7 units in the last place of a bf16: the value of its exponent.
float UnitsTimes128(std::uint32_t weight) {
  const std::uint32_t exponent = weight & 0x7f80U;
  return Value((exponent == 0 ? 0x80U : exponent) << 16);
}

TEST(Bfloat16With32Bits, RestoresEveryFloatAndRoundsTheWeight) {
  testing::ExpectNoViolations<scalar::Bfloat16Format<16>>(
      [](std::uint32_t image, const RoundTrip& trip, std::uint32_t /*before*/) {
        const std::uint32_t violations = If(trip.joined != image, kJoinedIsWrong) |
                                         If(trip.weight != CastAway(image), kWeightIsNotNearest);
        return Choose(IsNan(image), NanViolations(trip), violations);
      });
}

// Steps of 2^8 images, of which a weight's unit has 2^16: half a step is 2^-9 of a unit.
TEST(Bfloat16With24Bits, IsNearMonotonicAndRoundsTheJoinedWeight) {
  testing::ExpectNoViolations<scalar::Bfloat16Format<8>>(
      [](std::uint32_t image, const RoundTrip& trip, std::uint32_t before) {
        const std::uint32_t off_step = trip.joined & 0xffU;
        const std::uint32_t sign_change = (trip.joined ^ image) >> 31;
        const float error = std::abs(Value(trip.joined) - Value(image));  // exact
        const std::uint32_t too_large =
            If(error * 0x1p16F > UnitsTimes128(trip.weight), kErrorIsTooLarge);
        const std::uint32_t violations =
            If((off_step | sign_change) != 0, kJoinedIsWrong) |
            If(Distance(trip.joined, image) > 128U, kJoinedIsWrong) |
            If((trip.weight & 0x7f80U) != 0x7f80U, too_large) |
            If(trip.weight != CastAway(trip.joined), kWeightIsNotNearest) |
            If(before > trip.joined, kNotMonotonic);
        return Choose(IsNan(image), NanViolations(trip), violations);
      });
}

TEST(Bfloat16With16Bits, RoundsToTheNearest) {
  testing::ExpectNoViolations<scalar::Bfloat16Format<0>>(
      [](std::uint32_t image, const RoundTrip& trip, std::uint32_t /*before*/) {
        const std::uint32_t violations = If(trip.joined != trip.weight << 16, kJoinedIsWrong) |
                                         If(trip.weight != CastAway(image), kWeightIsNotNearest);
        return Choose(IsNan(image), NanViolations(trip), violations);
      });
}

// Joining reads any weight with any correction: within half a unit of the weight, whatever is in
// the correction.
TEST(Bfloat16With32Bits, AStaleCorrectionPullsByHalfAUnitAtMost) {
  using Format = scalar::Bfloat16Format<16>;
  using L = scalar::Lanes;
  std::atomic<std::uint64_t> wrong{0};
  testing::WalkBlocks([&](std::uint32_t first) {
    std::uint32_t bad = 0;
    for (std::uint32_t both = first; both != first + testing::kBlock; ++both) {
      const std::uint32_t weight = both >> 16;
      const auto correction = static_cast<std::uint32_t>(static_cast<std::int16_t>(both & 0xffffU));
      const std::uint32_t joined = L::Bits(scalar::JoinMaster<L, Format>(weight, correction));
      bad |= If(Distance(joined, weight << 16) > 0x8000U, 1) | ((joined >> 31) ^ (weight >> 15));
    }
    wrong += bad;
    return bad == 0;
  });
  EXPECT_EQ(wrong, 0U);
}

}  // namespace
}  // namespace flashoptim

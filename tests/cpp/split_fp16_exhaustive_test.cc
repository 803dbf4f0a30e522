// Every float through the split into fp16 and a correction (docs/format.md, 4.2 to 4.5).
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
using testing::Magnitude;
using testing::RoundTrip;

// Bits of a violation.
constexpr std::uint32_t kNanIsNotCanonical = 1;
constexpr std::uint32_t kJoinedIsWrong = 2;
constexpr std::uint32_t kWeightIsNotNearest = 4;
constexpr std::uint32_t kNotMonotonic = 8;
constexpr std::uint32_t kSignIsLost = 16;
constexpr std::uint32_t kOverflowIsNotInfinite = 32;
constexpr std::uint32_t kCorrectionIsTooWide = 64;

constexpr std::uint32_t kSmallestNormal = 0x38800000U;  // 2^-14
constexpr std::uint32_t kOverflow = 0x47800000U;        // 65536
constexpr std::uint32_t kInfinity = 0x7f800000U;

// Small numbers are rounded to multiples of 2^-37 first.
constexpr float kSmallError = 0x1p-38F;

// Floats suffice: weights, the middles between them and differences of near numbers are exact.
float Value(std::uint32_t magnitude) { return std::bit_cast<float>(magnitude); }

// The unit in the last place of a weight without its sign, and its value; infinity counts as 65536.
float Unit(std::uint32_t weight) {
  const std::uint32_t exponent = weight >> 10;
  return Value(((exponent == 0 ? 1U : exponent) + 127U - 25U) << 23);
}
float WeightValue(std::uint32_t weight) {
  const std::uint32_t fraction = weight & 0x3ffU;
  const std::uint32_t significand = weight < 0x400U ? fraction : fraction + 1024U;
  return static_cast<float>(static_cast<std::int32_t>(significand)) * Unit(weight);
}

// Whether no weight is nearer to a value, and of two equally near ones the larger is taken.
bool IsNearestAway(float value, std::uint32_t weight) {
  const float above = WeightValue(weight) + Unit(weight) * 0.5F;
  const float below = WeightValue(weight) - Unit(weight == 0 ? 0 : weight - 1U) * 0.5F;
  return (below <= value) & (value < above);
}

// What holds for every width of the correction.
std::uint32_t CommonViolations(std::uint32_t image, const RoundTrip& trip, std::uint32_t before) {
  const auto correction = static_cast<std::uint32_t>(trip.correction);
  const std::uint32_t not_nan = If(trip.weight != 0x7e00U, kNanIsNotCanonical) |
                                If(correction != 0, kNanIsNotCanonical) |
                                If(!IsNan(trip.joined), kNanIsNotCanonical);
  // All three are zero for an infinity.
  const std::uint32_t not_infinite =
      (Magnitude(trip.joined) ^ kInfinity) | ((trip.weight & 0x7fffU) ^ 0x7c00U) | correction;
  const std::uint32_t overflow = If(not_infinite != 0, kOverflowIsNotInfinite);
  const std::uint32_t violations = If(trip.joined >> 31 != image >> 31, kSignIsLost) |
                                   If(trip.weight >> 15 != image >> 31, kSignIsLost) |
                                   If(before > trip.joined, kNotMonotonic) |
                                   Choose(Magnitude(image) >= kOverflow, overflow, 0);
  return Choose(IsNan(image), not_nan, violations);
}

TEST(Float16With32Bits, RestoresNormalNumbersAndRoundsTheWeight) {
  testing::ExpectNoViolations<scalar::Float16Format<16>>(
      [](std::uint32_t image, const RoundTrip& trip, std::uint32_t before) {
        const std::uint32_t a = Magnitude(image);
        const std::uint32_t joined = Magnitude(trip.joined);
        const std::uint32_t small =
            If(std::abs(Value(joined) - Value(a)) > kSmallError, kJoinedIsWrong);
        const std::uint32_t normal = If(joined != a, kJoinedIsWrong);
        const std::uint32_t violations =
            Choose(a < kSmallestNormal, small, normal) |
            If(!IsNearestAway(Value(joined), trip.weight & 0x7fffU), kWeightIsNotNearest) |
            If(static_cast<std::uint32_t>(trip.correction + 4096) >= 8192U, kCorrectionIsTooWide);
        return CommonViolations(image, trip, before) | If(a < kOverflow, violations);
      });
}

// Steps of 2^5 images, of which a weight's unit has 2^13: half a step is 2^-9 of a unit.
TEST(Float16With24Bits, IsNearMonotonicAndRoundsTheJoinedWeight) {
  testing::ExpectNoViolations<scalar::Float16Format<8>>(
      [](std::uint32_t image, const RoundTrip& trip, std::uint32_t before) {
        const std::uint32_t a = Magnitude(image);
        const std::uint32_t joined = Magnitude(trip.joined);
        const std::uint32_t small =
            If(std::abs(Value(joined) - Value(a)) > 0x1p-33F + kSmallError, kJoinedIsWrong);
        const std::uint32_t normal = If(Distance(joined, a) > 16U, kJoinedIsWrong);
        const std::uint32_t violations =
            Choose(a < kSmallestNormal, small, normal) |
            If(!IsNearestAway(Value(joined), trip.weight & 0x7fffU), kWeightIsNotNearest);
        // Above the last step lies infinity.
        return CommonViolations(image, trip, before) | If(a < kOverflow - 16U, violations);
      });
}

TEST(Float16With16Bits, RoundsToTheNearest) {
  testing::ExpectNoViolations<scalar::Float16Format<0>>(
      [](std::uint32_t image, const RoundTrip& trip, std::uint32_t before) {
        const std::uint32_t a = Magnitude(image);
        const std::uint32_t weight = trip.weight & 0x7fffU;
        const float value = WeightValue(weight);
        const std::uint32_t small =
            If(std::abs(value - Value(a)) > 0x1p-25F + kSmallError, kWeightIsNotNearest);
        const std::uint32_t normal = If(!IsNearestAway(Value(a), weight), kWeightIsNotNearest);
        const std::uint32_t violations = Choose(a < kSmallestNormal, small, normal) |
                                         If(Value(Magnitude(trip.joined)) != value, kJoinedIsWrong);
        // Half a unit below 65536 the weight becomes infinite.
        return CommonViolations(image, trip, before) |
               If(a < kOverflow, If(weight < 0x7c00U, violations));
      });
}

}  // namespace
}  // namespace flashoptim

// Walks over all 2^32 images of a float, on all processors.
#ifndef FLASHOPTIM_TESTS_EXHAUSTIVE_H_
#define FLASHOPTIM_TESTS_EXHAUSTIVE_H_

#include <gtest/gtest.h>

#include <atomic>
#include <cstdint>
#include <iostream>
#include <thread>
#include <vector>

#include "cpu/scalar.h"
#include "sanitizers.h"

namespace flashoptim::testing {

/// Images are walked in blocks; a walk takes every kBlockStride-th: all of them, or a few under
/// sanitizers, where it would take hours.
constexpr std::uint32_t kBlock = 2048;
constexpr std::uint64_t kBlockStride = kSanitized ? 8209 : 1;

/// Calls block(first image) for the blocks until one returns false, from all processors.
template <class Block>
void WalkBlocks(const Block& block) {
  constexpr std::uint64_t kBlocks = (std::uint64_t{1} << 32) / kBlock;
  if (kBlockStride != 1) {
    std::cout << "under a sanitizer: one block of " << kBlock << " images in " << kBlockStride
              << "\n";
  }
  std::atomic<std::uint64_t> next{0};
  const auto walk = [&] {
    for (std::uint64_t i = next.fetch_add(kBlockStride); i < kBlocks;
         i = next.fetch_add(kBlockStride)) {
      if (!block(static_cast<std::uint32_t>(i * kBlock))) next.store(kBlocks);
    }
  };
  std::vector<std::thread> threads;
  for (unsigned i = 1; i < std::thread::hardware_concurrency(); ++i) threads.emplace_back(walk);
  walk();
  for (std::thread& thread : threads) thread.join();
}

/// What a split stores, in the width of the stored correction, and what a join makes of it.
struct RoundTrip {
  std::uint32_t weight;
  std::int32_t correction;
  std::uint32_t joined;
};

template <class Format>
inline RoundTrip SplitAndJoin(std::uint32_t image) {
  using L = scalar::Lanes;
  std::uint32_t weight = 0;
  std::uint32_t correction = 0;
  scalar::SplitMaster<L, Format>(L::AsFloat(image), scalar::NearestIncrement<Format>(), weight,
                                 correction);
  weight &= 0xffffU;
  std::int32_t stored = 0;
  if constexpr (Format::kKept == 8) stored = static_cast<std::int8_t>(correction);
  if constexpr (Format::kKept > 8) stored = static_cast<std::int16_t>(correction);
  const float joined = scalar::JoinMaster<L, Format>(weight, static_cast<std::uint32_t>(stored));
  return {weight, stored, L::Bits(joined)};
}

/// Asserts that violations(image, round trip, joined image of the float below in magnitude) is 0
/// for all images; its bits say what is wrong. Plain loops, so that the compiler can use vectors.
template <class Format, class Violations>
void ExpectNoViolations(const Violations& violations) {
  std::atomic<bool> failed{false};
  WalkBlocks([&](std::uint32_t first) {
    // One array a column, and what comes before the block in front.
    std::uint32_t weights[kBlock + 1];
    std::int32_t corrections[kBlock + 1];
    std::uint32_t joined[kBlock + 1];
    for (std::uint32_t i = 0; i <= kBlock; ++i) {
      const RoundTrip trip = SplitAndJoin<Format>(first - 1U + i);
      weights[i] = trip.weight;
      corrections[i] = trip.correction;
      joined[i] = trip.joined;
    }
    // Zeros have nothing below them.
    if ((first & 0x7fffffffU) == 0) joined[0] = joined[1];
    const auto violations_at = [&](std::uint32_t i) {
      const RoundTrip trip = {weights[i + 1], corrections[i + 1], joined[i + 1]};
      return violations(first + i, trip, joined[i]);
    };
    std::uint32_t found = 0;
    for (std::uint32_t i = 0; i < kBlock; ++i) found |= violations_at(i);
    if (found == 0) return true;
    if (failed.exchange(true)) return false;
    std::uint32_t i = 0;
    while (violations_at(i) == 0) ++i;
    ADD_FAILURE() << "image 0x" << std::hex << first + i << " gives weight 0x" << weights[i + 1]
                  << ", correction " << std::dec << corrections[i + 1] << ", joined 0x" << std::hex
                  << joined[i + 1] << ": violations " << violations_at(i);
    return false;
  });
}

inline std::uint32_t Magnitude(std::uint32_t image) { return image & 0x7fffffffU; }
inline bool IsNan(std::uint32_t image) { return Magnitude(image) > 0x7f800000U; }

/// How many images lie between two.
inline std::uint32_t Distance(std::uint32_t a, std::uint32_t b) { return a > b ? a - b : b - a; }

/// Without branches, which vectors cannot take: `flag` if `wrong`, and a choice of two words.
inline std::uint32_t If(bool wrong, std::uint32_t flag) {
  return (0U - static_cast<std::uint32_t>(wrong)) & flag;
}
inline std::uint32_t Choose(bool first, std::uint32_t a, std::uint32_t b) {
  return If(first, a) | If(!first, b);
}

}  // namespace flashoptim::testing

#endif  // FLASHOPTIM_TESTS_EXHAUSTIVE_H_

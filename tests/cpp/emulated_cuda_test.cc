// What the emulation of a GPU (emulated_cuda/) promises to the tests that rely on it.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <functional>
#include <stdexcept>
#include <vector>

#include "cuda/cuda_lanes.cuh"
#include "emulated_cuda/warp.h"
#include "sanitizers.h"

namespace flashoptim::emulated_cuda {
namespace {

void RunThreads(unsigned blocks, unsigned threads, const std::function<void()>& thread) {
  Launch(nullptr, blocks, threads, thread);
}

class EmulatedWarps : public ::testing::Test {
 protected:
  void SetUp() override {
    if (testing::kThreadSanitizer) GTEST_SKIP() << "fibers are beyond it, and all is one thread";
  }
};

TEST_F(EmulatedWarps, EveryThreadOfEveryBlockRunsOnce) {
  std::vector<int> runs(3 * 64);
  RunThreads(3, 64, [&] { ++runs[64 * blockIdx.x + threadIdx.x]; });
  EXPECT_EQ(runs, std::vector<int>(3 * 64, 1));
  EXPECT_THROW(RunThreads(1, 48, [] {}), std::logic_error);
}

TEST_F(EmulatedWarps, ValuesAreExchangedInsideAWarp) {
  std::vector<unsigned> sums(96);
  std::vector<int> any(96);
  RunThreads(1, 96, [&] {
    unsigned sum = threadIdx.x;
    for (unsigned lane = 1; lane < 32; lane <<= 1) {
      sum += __shfl_xor_sync(0xffffffffU, sum, lane);
    }
    sums[threadIdx.x] = sum;
    any[threadIdx.x] = __any_sync(0xffffffffU, threadIdx.x == 40);
  });
  for (unsigned i = 0; i < 96; ++i) {
    const unsigned first = i / 32 * 32;
    EXPECT_EQ(sums[i], 32 * first + 31 * 32 / 2);
    EXPECT_EQ(any[i], first == 32 ? 1 : 0);
  }
}

TEST_F(EmulatedWarps, LanesThatPartAreRefused) {
  const auto exchange = [] { __any_sync(0xffffffffU, true); };
  EXPECT_THROW(RunThreads(1, 32,
                          [&] {
                            if (threadIdx.x != 7) exchange();
                          }),
               std::logic_error);
  EXPECT_THROW(RunThreads(1, 32,
                          [&] {
                            if (threadIdx.x < 16) __shfl_xor_sync(0xffffffffU, 1U, 1);
                            exchange();
                          }),
               std::logic_error);
  EXPECT_THROW(RunThreads(1, 32, [] { __any_sync(0xffffU, true); }), std::logic_error);
  EXPECT_NO_THROW(RunThreads(1, 32, exchange));
}

TEST(EmulatedInstructions, BytesArePermutedAsByPrmt) {
  EXPECT_EQ(cuda::Permute(0x33221100U, 0x77665544U, 0x7531U), 0x77553311U);
  EXPECT_EQ(cuda::Permute(0x33221100U, 0x77665544U, 0x0246U), 0x00224466U);
  EXPECT_EQ(cuda::Permute(0x80007f00U, 0U, 0xbb34U), 0xffff8000U);
  EXPECT_EQ(cuda::Permute(0x80007f00U, 0U, 0x9914U), 0x00007f00U);
}

// The Newton step makes these estimates, like those of a GPU, correctly rounded: all mantissas, of
// the two exponents that differ to a root.
TEST(EmulatedInstructions, FastLanesAreCorrectlyRounded) {
  for (std::uint32_t bits = 0x3f800000U; bits < 0x40800000U; ++bits) {
    const auto x = std::bit_cast<float>(bits);
    ASSERT_EQ(cuda::FastLanes::Sqrt(x), std::sqrt(x)) << bits;
    ASSERT_EQ(cuda::FastLanes::Reciprocal(x), 1.0F / x) << bits;
  }
}

TEST(EmulatedInstructions, EstimatesKnowNoSubnormals) {
  EXPECT_EQ(cuda::EstimateReciprocal(0x1p-127F), INFINITY);
  EXPECT_EQ(cuda::EstimateReciprocal(-0x1p-127F), -INFINITY);
  EXPECT_EQ(cuda::EstimateReciprocal(0x1.8p126F), 0.0F);
  EXPECT_EQ(cuda::EstimateReciprocalRoot(0x1p-127F), INFINITY);
  EXPECT_EQ(cuda::EstimateReciprocalRoot(INFINITY), 0.0F);
}

}  // namespace
}  // namespace flashoptim::emulated_cuda

// The kernels of one rule: a fast one per form of tensor, and a careful one for all others.
#ifndef FLASHOPTIM_CUDA_STEP_KERNEL_CUH_
#define FLASHOPTIM_CUDA_STEP_KERNEL_CUH_

#include <cstdint>

#include "cuda/careful_group.cuh"
#include "cuda/fast_group.cuh"
#include "cuda/launch_table.h"

namespace flashoptim::cuda {

// The tensor that this block belongs to: the last one whose first block is not after it.
FLASHOPTIM_FN unsigned TensorOfBlock(const LaunchTable& table) {
  unsigned tensor = table.hints[blockIdx.x >> table.hint_shift];
  while (table.first_block[tensor + 1] <= blockIdx.x) ++tensor;
  return tensor;
}

constexpr std::uint32_t kElementsPerPass = LaunchPolicy::kGroupsPerPass * std::uint32_t{kGroupSize};

// Clears the number of a group inside its warp, so that a lane beyond the last group comes along
// with the warp's first one.
FLASHOPTIM_FN std::uint32_t InFirstGroupOfWarp(std::uint32_t i) {
  return i & ~std::uint32_t{32 * LaunchPolicy::kElements - kGroupSize};
}

// Elements of a block, counted from its first, as its threads go through them.
struct BlockRange {
  std::uint32_t begin;  // of this thread
  std::uint32_t end;    // of the block

  FLASHOPTIM_FN BlockRange(const LaunchTable& table, unsigned tensor)
      : begin(threadIdx.x * LaunchPolicy::kElements),
        end((blockIdx.x + 1 == table.first_block[tensor + 1] ? table.last_groups[tensor]
                                                             : LaunchPolicy::kGroupsPerBlock) *
            std::uint32_t{kGroupSize}) {}

  FLASHOPTIM_FN bool WarpHasWork(std::uint32_t i) const { return InFirstGroupOfWarp(i) < end; }
  FLASHOPTIM_FN std::uint32_t Clamped(std::uint32_t i) const {
    return i < end ? i : InFirstGroupOfWarp(i);
  }
};

FLASHOPTIM_FN std::uint64_t FirstGroup(const LaunchTable& table, unsigned tensor) {
  return std::uint64_t{blockIdx.x - table.first_block[tensor]} * LaunchPolicy::kGroupsPerBlock;
}

// The scalars and seeds of this block's tensor; false if its step is to be skipped.
template <bool kDeviceScalars>
FLASHOPTIM_FN bool FindScalars(const LaunchTable& table, unsigned tensor,
                               const core::StepScalars*& scalars, const std::uint32_t*& seeds) {
  if constexpr (kDeviceScalars) {
    const DeviceScalars& found = table.device_scalars[table.device_index[tensor]];
    scalars = &found.scalars;
    seeds = found.stream_seeds;
    return found.skip == 0;
  } else {
    scalars = &table.tasks[tensor].scalars;
    seeds = table.tasks[tensor].stream_seeds;
    return true;
  }
}

// Steps those passes of this block carefully whose bit is set.
template <KernelRule kRule, class Codecs, bool kDeviceScalars>
__device__ __noinline__ void StepPassesCarefully(const LaunchTable& table, std::uint32_t passes) {
  const unsigned tensor = TensorOfBlock(table);
  const TensorTask& task = table.tasks[tensor];
  const core::StepScalars* scalars;
  const std::uint32_t* seeds;
  if (!FindScalars<kDeviceScalars>(table, tensor, scalars, seeds)) return;
  const std::uint64_t first_group = FirstGroup(table, tensor);
  const BlockRange range(table, tensor);
#pragma unroll 1
  for (std::uint32_t i = range.begin; range.WarpHasWork(i); i += kElementsPerPass) {
    if ((passes & 1U) != 0) {
      StepGroupCarefully<kRule, Codecs>(task, *scalars, seeds,
                                        first_group + range.Clamped(i) / kGroupSize, i < range.end);
    }
    passes >>= 1;
  }
}

template <KernelRule kRule, bool kDeviceScalars>
__global__ void __launch_bounds__(LaunchPolicy::kThreads)
    StepCarefulKernel(const __grid_constant__ LaunchTable table) {
  StepPassesCarefully<kRule, AnyCodec, kDeviceScalars>(table, ~0U);
}

template <KernelRule kRule, class First, class Second, int kCorrectionBits, bool kPlainGradient,
          bool kStochasticWeight, bool kDeviceScalars, bool kPartsOfRows>
__global__ void __launch_bounds__(LaunchPolicy::kThreads, LaunchPolicy::BlocksPerSm(kRule))
    StepFastKernel(const __grid_constant__ LaunchTable table) {
  const unsigned tensor = TensorOfBlock(table);
  const TensorTask& task = table.tasks[tensor];
  const core::StepScalars* scalars;
  const std::uint32_t* stream_seeds;
  if (!FindScalars<kDeviceScalars>(table, tensor, scalars, stream_seeds)) return;
  const BlockArrays arrays(task, FirstGroup(table, tensor), kRule, kCorrectionBits);
  const LaneScalars<FastLanes> h(*scalars);
  const GroupSeeds seeds(task, stream_seeds, kRule, kStochasticWeight);
  const QuadCounters<kPartsOfRows> counters(task, FirstGroup(table, tensor));
  const BlockRange range(table, tensor);
  if (!range.WarpHasWork(range.begin)) return;

  // Each pass reads what the next one needs before it computes, so that memory is never idle.
  // Passes that need care are done at the end: a call in between would keep registers from them.
  std::uint32_t careful = 0;
  RawElements<kRule, First, Second, kCorrectionBits> raw[LaunchPolicy::kPasses];
  raw[0].Load(arrays, range.Clamped(range.begin));
#pragma unroll
  for (unsigned pass = 0; pass < LaunchPolicy::kPasses; ++pass) {
    const std::uint32_t i = range.begin + pass * kElementsPerPass;
    if (!range.WarpHasWork(i)) break;
    if (pass + 1 < LaunchPolicy::kPasses && range.WarpHasWork(i + kElementsPerPass)) {
      raw[pass + 1].Load(arrays, range.Clamped(i + kElementsPerPass));
    }
    if (!StepGroupFast<kRule, First, Second, kCorrectionBits, kPlainGradient, kStochasticWeight>(
            arrays, h, task.nesterov, seeds, counters, raw[pass], range.Clamped(i),
            i < range.end)) {
      careful |= 1U << pass;
    }
  }
  if (careful != 0) {
    StepPassesCarefully<kRule, OneCodec<First, Second>, kDeviceScalars>(table, careful);
  }
}

}  // namespace flashoptim::cuda

#endif  // FLASHOPTIM_CUDA_STEP_KERNEL_CUH_

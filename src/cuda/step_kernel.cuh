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

// Groups of a tensor from `first` on, as far as one block goes.
FLASHOPTIM_FN std::uint32_t GroupsOfBlock(const TensorTask& task, std::uint64_t first) {
  const std::uint64_t left = core::GroupCount(task) - first;
  return left < LaunchPolicy::kGroupsPerBlock ? static_cast<std::uint32_t>(left)
                                              : LaunchPolicy::kGroupsPerBlock;
}

// Clears the number of a group inside its warp, so that a lane beyond the last group comes along
// with the warp's first one.
FLASHOPTIM_FN std::uint64_t InFirstGroupOfWarp(std::uint64_t i) {
  return i & ~std::uint64_t{32 * LaunchPolicy::kElements - kGroupSize};
}

// Elements of a block, as its threads go through them.
struct BlockRange {
  std::uint64_t begin;  // of this thread
  std::uint64_t end;    // of the block

  FLASHOPTIM_FN BlockRange(const TensorTask& task, std::uint64_t first_group)
      : begin(first_group * kGroupSize + threadIdx.x * LaunchPolicy::kElements),
        end((first_group + GroupsOfBlock(task, first_group)) * kGroupSize) {}

  FLASHOPTIM_FN bool WarpHasWork(std::uint64_t i) const { return InFirstGroupOfWarp(i) < end; }
  FLASHOPTIM_FN std::uint64_t Clamped(std::uint64_t i) const {
    return i < end ? i : InFirstGroupOfWarp(i);
  }
};

FLASHOPTIM_FN std::uint64_t FirstGroup(const LaunchTable& table, unsigned tensor) {
  return std::uint64_t{blockIdx.x - table.first_block[tensor]} * LaunchPolicy::kGroupsPerBlock;
}

// A first and a second codec, as one argument.
template <class First, class Second>
struct Codecs {};

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
template <KernelRule kRule, bool kDeviceScalars>
__device__ __noinline__ void StepPassesCarefully(const LaunchTable& table, std::uint32_t passes) {
  const unsigned tensor = TensorOfBlock(table);
  const TensorTask& task = table.tasks[tensor];
  const core::StepScalars* scalars;
  const std::uint32_t* seeds;
  if (!FindScalars<kDeviceScalars>(table, tensor, scalars, seeds)) return;
  const BlockRange range(task, FirstGroup(table, tensor));
#pragma unroll 1
  for (std::uint64_t i = range.begin; range.WarpHasWork(i); i += kElementsPerPass) {
    if ((passes & 1U) != 0) {
      StepGroupCarefully<kRule>(task, *scalars, seeds, range.Clamped(i) / kGroupSize,
                                i < range.end);
    }
    passes >>= 1;
  }
}

template <KernelRule kRule, bool kDeviceScalars>
__global__ void __launch_bounds__(LaunchPolicy::kThreads)
    StepCarefulKernel(const __grid_constant__ LaunchTable table) {
  StepPassesCarefully<kRule, kDeviceScalars>(table, ~0U);
}

template <KernelRule kRule, class First, class Second, int kCorrectionBits, bool kPlainGradient,
          bool kDeviceScalars>
__global__ void __launch_bounds__(LaunchPolicy::kThreads, LaunchPolicy::kBlocksPerSm)
    StepFastKernel(const __grid_constant__ LaunchTable table) {
  const unsigned tensor = TensorOfBlock(table);
  const TensorTask& task = table.tasks[tensor];
  const core::StepScalars* scalars;
  const std::uint32_t* seeds;
  if (!FindScalars<kDeviceScalars>(table, tensor, scalars, seeds)) return;
  const std::uint64_t first_group = FirstGroup(table, tensor);
  const LaneScalars<FastLanes> h(*scalars);
  // The host gives this kernel no tensor in which a block's counters differ in their high half.
  const std::uint32_t high =
      Mix<FastLanes>(static_cast<std::uint32_t>((task.first_group + first_group) >> 28));
  const std::uint32_t second_seed = Opaque(seeds[core::kSecondMoment] ^ high);
  const std::uint32_t maximum_seed = HasMaximum(kRule) ? Opaque(seeds[core::kMaximum] ^ high) : 0;
  const BlockRange range(task, first_group);
  if (!range.WarpHasWork(range.begin)) return;

  // Each pass reads what the next one needs before it computes, so that memory is never idle.
  // Passes that need care are done at the end: a call in the loop would keep registers from it.
  std::uint32_t careful = 0;
  std::uint32_t pass = 1;
  RawElements<kRule, First, Second, kCorrectionBits> next;
  next.Load(task, range.Clamped(range.begin));
#pragma unroll 2
  for (std::uint64_t i = range.begin; range.WarpHasWork(i); i += kElementsPerPass) {
    auto raw = next;
    if (range.WarpHasWork(i + kElementsPerPass)) {
      next.Load(task, range.Clamped(i + kElementsPerPass));
    }
    if (!StepGroupFast<kRule, First, Second, kCorrectionBits, kPlainGradient>(
            task, h, second_seed, maximum_seed, raw, range.Clamped(i), i < range.end)) {
      careful |= pass;
    }
    pass <<= 1;
  }
  if (careful != 0) StepPassesCarefully<kRule, kDeviceScalars>(table, careful);
}

}  // namespace flashoptim::cuda

#endif  // FLASHOPTIM_CUDA_STEP_KERNEL_CUH_

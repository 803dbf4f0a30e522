// What one kernel launch works on: a table of tensors in the kernel's parameters, so that nothing
// has to be copied to the device before a step.
#ifndef FLASHOPTIM_CUDA_LAUNCH_TABLE_H_
#define FLASHOPTIM_CUDA_LAUNCH_TABLE_H_

#include <cstdint>

#include "core/tensor_task.h"

namespace flashoptim::cuda {

/// Shape of a launch. Figures are of one H200 (docs/performance.md).
struct LaunchPolicy {
  static constexpr unsigned kThreads = 256;  ///< of a block
  /// 64 registers a thread: room for what is read ahead. With a third moment 80.
  static constexpr unsigned BlocksPerSm(core::KernelRule rule) {
    return core::HasMaximum(rule) ? 3 : 4;
  }
  static constexpr unsigned kElements = 8;  ///< of a thread at a time: 16-byte loads of weights
  static constexpr unsigned kThreadsPerGroup = kGroupSize / kElements;
  static constexpr unsigned kGroupsPerPass = kThreads / kThreadsPerGroup;  ///< of a block at a time
  static constexpr unsigned kPasses = 2;  ///< of a block, which in each reads ahead for the next
  static constexpr unsigned kGroupsPerBlock = kGroupsPerPass * kPasses;
};

/// Tensors of one launch. Kernel parameters may take 32,764 bytes (CUDA 12.1, compute
/// capability 7.0).
inline constexpr unsigned kTableCapacity = 183;
inline constexpr unsigned kHints = 256;

/// Scalars and seeds of one tensor's step, made on the device (prepare.cu).
struct DeviceScalars {
  core::StepScalars scalars;
  std::uint32_t stream_seeds[4];
  std::uint32_t skip;
};

struct LaunchTable {
  std::uint32_t count;
  /// Of each tensor, since blocks are handed out in order; then the number of all blocks.
  std::uint32_t first_block[kTableCapacity + 1];
  /// Groups in the last block of each tensor; the others are full.
  std::uint8_t last_groups[kTableCapacity];
  /// Tensor of block i << hint_shift: where the search for a block's tensor starts.
  std::uint8_t hints[kHints];
  std::uint32_t hint_shift;
  core::TensorTask tasks[kTableCapacity];
  /// Instead of the scalars and seeds in `tasks`, for kernels that take them from the device.
  const DeviceScalars* device_scalars;
  std::uint32_t device_index[kTableCapacity];
};
static_assert(sizeof(LaunchTable) <= 32764);

/// Work of the kernel that makes DeviceScalars.
struct PrepareTable {
  Rule rule;
  std::uint32_t count;
  core::GradientScaling scaling;
  DeviceScalars* result;
  core::ScalarSource sources[kTableCapacity];
};
static_assert(sizeof(PrepareTable) <= 32764);

}  // namespace flashoptim::cuda

#endif  // FLASHOPTIM_CUDA_LAUNCH_TABLE_H_

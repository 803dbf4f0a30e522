// The CPU backend: steps many tensors in one parallel loop.
#ifndef FLASHOPTIM_CPU_BACKEND_H_
#define FLASHOPTIM_CPU_BACKEND_H_

#include <cstdint>
#include <span>
#include <vector>

#include "core/tensor_task.h"

namespace flashoptim::cpu {

/// A run of groups [begin, end) of the task `task`: what one call of the parallel loop does.
struct Chunk {
  std::uint32_t task;
  std::uint64_t begin;
  std::uint64_t end;
};

/// Cuts tasks into chunks of equal size.
std::vector<Chunk> MakeChunks(std::span<const core::TensorTask> tasks);

/// Steps every task that has a gradient. Allocates nothing.
void Step(std::span<const core::TensorTask> tasks, std::span<const Chunk> chunks);

/// Sets flags[i] to 1 if the gradient of task i holds NaN or an infinity, else to 0.
void FindNonfinite(std::span<const core::TensorTask> tasks, std::span<const Chunk> chunks,
                   std::span<std::uint8_t> flags);

}  // namespace flashoptim::cpu

#endif  // FLASHOPTIM_CPU_BACKEND_H_

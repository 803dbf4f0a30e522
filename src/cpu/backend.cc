#include "cpu/backend.h"

#include <algorithm>
#include <atomic>

#include "cpu/targets.h"
#include "cpu/thread_pool.h"

namespace flashoptim::cpu {
namespace {

// 16,384 elements, about 200 KB of traffic: long enough to hide the hand-out of a chunk, short
// enough to balance two cores on a model of 10 M parameters.
constexpr std::uint64_t kGroupsPerChunk = 256;

std::uint64_t ElementOffset(const core::TensorTask& task, std::uint64_t group) {
  const std::uint64_t groups_per_row = core::GroupsPerRow(task.row_length);
  return group / groups_per_row * task.row_length + group % groups_per_row * kGroupSize;
}

template <class Bits>
bool AnyNonfinite(const Bits* bits, std::uint64_t count, Bits exponent) {
  bool found = false;
  for (std::uint64_t i = 0; i < count; ++i) found |= (bits[i] & exponent) == exponent;
  return found;
}

bool AnyNonfinite(const core::TensorTask& task, std::uint64_t begin, std::uint64_t end) {
  switch (task.gradient_dtype) {
    case DType::kBFloat16:
      return AnyNonfinite<std::uint16_t>(static_cast<const std::uint16_t*>(task.gradient) + begin,
                                         end - begin, 0x7f80U);
    case DType::kFloat16:
      return AnyNonfinite<std::uint16_t>(static_cast<const std::uint16_t*>(task.gradient) + begin,
                                         end - begin, 0x7c00U);
    case DType::kFloat32:
      break;
  }
  return AnyNonfinite<std::uint32_t>(static_cast<const std::uint32_t*>(task.gradient) + begin,
                                     end - begin, 0x7f800000U);
}

}  // namespace

std::vector<Chunk> MakeChunks(std::span<const core::TensorTask> tasks) {
  std::vector<Chunk> chunks;
  for (std::uint32_t i = 0; i < tasks.size(); ++i) {
    const std::uint64_t groups = core::GroupCount(tasks[i]);
    for (std::uint64_t begin = 0; begin < groups; begin += kGroupsPerChunk) {
      chunks.push_back({i, begin, std::min(begin + kGroupsPerChunk, groups)});
    }
  }
  return chunks;
}

void Step(std::span<const core::TensorTask> tasks, std::span<const Chunk> chunks) {
  const StepGroupsFunction step_groups = ChosenTarget().step_groups;
  auto body = [&](std::uint64_t i) {
    const Chunk& chunk = chunks[i];
    const core::TensorTask& task = tasks[chunk.task];
    if (task.gradient != nullptr) step_groups(task, chunk.begin, chunk.end);
  };
  ParallelFor(chunks.size(), body);
}

void FindNonfinite(std::span<const core::TensorTask> tasks, std::span<const Chunk> chunks,
                   std::span<std::uint8_t> flags) {
  std::fill(flags.begin(), flags.end(), std::uint8_t{0});
  auto body = [&](std::uint64_t i) {
    const Chunk& chunk = chunks[i];
    const core::TensorTask& task = tasks[chunk.task];
    if (task.gradient == nullptr) return;
    const std::uint64_t rest = task.rows * task.row_length;
    const std::uint64_t end =
        chunk.end == core::GroupCount(task) ? rest : ElementOffset(task, chunk.end);
    if (AnyNonfinite(task, ElementOffset(task, chunk.begin), end)) {
      std::atomic_ref<std::uint8_t>(flags[chunk.task]).store(1, std::memory_order_relaxed);
    }
  };
  ParallelFor(chunks.size(), body);
}

}  // namespace flashoptim::cpu

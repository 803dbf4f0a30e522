#include "cuda/kernels.h"
#include "cuda/step_kernel.cuh"

namespace flashoptim::cuda {
namespace {

__global__ void __launch_bounds__(LaunchPolicy::kThreads)
    MarkNonfinite(const __grid_constant__ LaunchTable table, std::uint8_t* flags) {
  const unsigned tensor = TensorOfBlock(table);
  const TensorTask& task = table.tasks[tensor];
  const std::uint64_t first_group = FirstGroup(table, tensor);
  const BlockRange range(table, tensor);
  bool finite = true;
  for (std::uint32_t i = range.begin; range.WarpHasWork(i); i += kElementsPerPass) {
    const std::uint64_t group = first_group + range.Clamped(i) / kGroupSize;
    Values g;
    LoadGradients(task, PartOf(task, group, i < range.end), g);
    FLASHOPTIM_FOR_ELEMENTS { finite &= IsFinite(g[k]); }
  }
  if (!finite) flags[tensor] = 1;
}

}  // namespace

void FindNonfiniteKernel(const LaunchTable& table, std::uint32_t blocks, std::uint8_t* flags,
                         void* stream) {
  void* arguments[] = {const_cast<LaunchTable*>(&table), static_cast<void*>(&flags)};
  cudaLaunchKernel(MarkNonfinite, dim3(blocks), dim3(LaunchPolicy::kThreads), arguments, 0,
                   static_cast<cudaStream_t>(stream));
}

}  // namespace flashoptim::cuda

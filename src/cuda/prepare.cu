#include "cuda/cuda_lanes.cuh"
#include "cuda/kernels.h"

namespace flashoptim::cuda {
namespace {

constexpr unsigned kThreads = 64;

__global__ void Prepare(const __grid_constant__ PrepareTable table) {
  const unsigned i = blockIdx.x * kThreads + threadIdx.x;
  if (i >= table.count) return;
  DeviceScalars& result = table.result[i];
  const core::GradientScaling& scaling = table.scaling;
  if (scaling.found_inf != nullptr && *scaling.found_inf != 0.0F) {
    result.skip = 1;
    return;
  }
  const core::ScalarSource& source = table.sources[i];
  *source.step += 1.0F;
  const auto step = static_cast<std::uint64_t>(*source.step);
  Hyperparameters h = source.hyperparameters;
  if (source.lr != nullptr) h.lr = *source.lr;
  result.scalars = MakeScalars<core::StepScalars>(table.rule, h, step);
  if (scaling.scale != nullptr) {
    result.scalars.gradient_multiplier = result.scalars.gradient_multiplier / *scaling.scale;
  }
  MakeStreamSeeds<CarefulLanes>(h.seed, source.stream_key, step, result.stream_seeds);
  result.skip = 0;
}

}  // namespace

void PrepareScalars(const PrepareTable& table, void* stream) {
  const unsigned blocks = (table.count + kThreads - 1) / kThreads;
  void* arguments[] = {const_cast<PrepareTable*>(&table)};
  cudaLaunchKernel(Prepare, dim3(blocks), dim3(kThreads), arguments, 0,
                   static_cast<cudaStream_t>(stream));
}

}  // namespace flashoptim::cuda

#include <cuda_runtime.h>

#include "cuda/backend.h"
#include "cuda/device_guard.h"

namespace flashoptim::cuda {

void* Allocate(int device, std::size_t bytes) {
  const DeviceGuard guard(device);
  void* memory = nullptr;
  Check(cudaMalloc(&memory, bytes), "cannot allocate optimizer state");
  return memory;
}

void Release(void* memory) noexcept { cudaFree(memory); }

void CopyToDevice(int device, void* target, const void* source, std::size_t bytes, void* stream) {
  const DeviceGuard guard(device);
  auto* const cuda_stream = static_cast<cudaStream_t>(stream);
  Check(cudaMemcpyAsync(target, source, bytes, cudaMemcpyHostToDevice, cuda_stream),
        "cannot write to the GPU");
  Check(cudaStreamSynchronize(cuda_stream), "writing to the GPU failed");
}

void CopyToHost(int device, void* target, const void* source, std::size_t bytes, void* stream) {
  const DeviceGuard guard(device);
  auto* const cuda_stream = static_cast<cudaStream_t>(stream);
  Check(cudaMemcpyAsync(target, source, bytes, cudaMemcpyDeviceToHost, cuda_stream),
        "cannot read from the GPU");
  Check(cudaStreamSynchronize(cuda_stream), "reading from the GPU failed");
}

}  // namespace flashoptim::cuda

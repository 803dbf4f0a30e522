// The run-time library of cuda_runtime.h: one GPU, whose memory is the host's and whose streams are
// always done.
#include <cuda_runtime.h>

#include <cstdlib>
#include <cstring>

const char* cudaGetErrorString(cudaError_t error) {
  return error == cudaSuccess ? "no error" : "out of memory";
}

cudaError_t cudaGetLastError() { return cudaSuccess; }

cudaError_t cudaGetDeviceCount(int* count) {
  *count = 1;
  return cudaSuccess;
}

cudaError_t cudaGetDevice(int* device) {
  *device = 0;
  return cudaSuccess;
}

cudaError_t cudaSetDevice(int /*device*/) { return cudaSuccess; }

cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* /*attributes*/, const void* /*kernel*/) {
  return cudaSuccess;
}

cudaError_t cudaMalloc(void** memory, std::size_t size) {
  constexpr std::size_t kAlignment = 256;
  *memory = std::aligned_alloc(kAlignment, (size + kAlignment - 1) / kAlignment * kAlignment);
  return *memory != nullptr || size == 0 ? cudaSuccess : cudaErrorMemoryAllocation;
}

cudaError_t cudaFree(void* memory) {
  std::free(memory);
  return cudaSuccess;
}

cudaError_t cudaMemsetAsync(void* memory, int byte, std::size_t size, cudaStream_t /*stream*/) {
  std::memset(memory, byte, size);
  return cudaSuccess;
}

cudaError_t cudaMemcpyAsync(void* target, const void* source, std::size_t size,
                            cudaMemcpyKind /*kind*/, cudaStream_t /*stream*/) {
  std::memcpy(target, source, size);
  return cudaSuccess;
}

cudaError_t cudaStreamSynchronize(cudaStream_t /*stream*/) { return cudaSuccess; }

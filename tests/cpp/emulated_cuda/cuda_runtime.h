// In place of CUDA's header of this name: as much of the language and of the run-time library as
// src/cuda uses, by the CPU. With this folder first in the include path, an ordinary compiler
// compiles src/cuda into a backend whose "GPU" is the calling thread (warp.h).
#ifndef FLASHOPTIM_TESTS_EMULATED_CUDA_CUDA_RUNTIME_H_
#define FLASHOPTIM_TESTS_EMULATED_CUDA_CUDA_RUNTIME_H_

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <utility>

#include "warp.h"

// The names are CUDA's.
// NOLINTBEGIN(bugprone-reserved-identifier,readability-identifier-naming)

#define __device__
#define __forceinline__ inline
#define __global__
#define __grid_constant__
#define __launch_bounds__(...)
#define __noinline__

// As in CUDA, and unlike in C++, memory may be read as any of these whatever was written there.
struct [[gnu::may_alias]] alignas(8) uint2 {
  unsigned x, y;
};
struct [[gnu::may_alias]] alignas(16) uint4 {
  unsigned x, y, z, w;
};
struct dim3 {
  unsigned x = 1, y = 1, z = 1;
  explicit dim3(unsigned width) : x(width) {}
};
inline uint2 make_uint2(unsigned x, unsigned y) { return {x, y}; }
inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }

inline flashoptim::emulated_cuda::Index threadIdx;
inline flashoptim::emulated_cuda::Index blockIdx;

inline uint2 __ldcg(const uint2* p) { return *p; }
inline uint4 __ldcg(const uint4* p) { return *p; }

inline std::uint32_t __float_as_uint(float x) { return std::bit_cast<std::uint32_t>(x); }
inline float __uint_as_float(std::uint32_t x) { return std::bit_cast<float>(x); }

// A GPU makes no other NaN than this one.
inline float __with_canonical_nan(float x) {
  return std::isnan(x) ? __uint_as_float(0x7fffffffU) : x;
}
inline float __fadd_rn(float a, float b) { return __with_canonical_nan(a + b); }
inline float __fsub_rn(float a, float b) { return __with_canonical_nan(a - b); }
inline float __fmul_rn(float a, float b) { return __with_canonical_nan(a * b); }
inline float __fdiv_rn(float a, float b) { return __with_canonical_nan(a / b); }
inline float __fmaf_rn(float a, float b, float c) {
  return __with_canonical_nan(std::fma(a, b, c));
}
inline float __fsqrt_rn(float x) { return __with_canonical_nan(std::sqrt(x)); }
inline float __frcp_rn(float x) { return __with_canonical_nan(1.0F / x); }

// The sum of the products of two words' bytes and `sum`.
inline std::uint32_t __dp4a(std::uint32_t a, std::uint32_t b, std::uint32_t sum) {
  for (unsigned shift = 0; shift < 32; shift += 8) {
    sum += ((a >> shift) & 0xffU) * ((b >> shift) & 0xffU);
  }
  return sum;
}

inline float max(float a, float b) { return std::fmax(a, b); }
inline std::uint32_t max(std::uint32_t a, std::uint32_t b) { return std::max(a, b); }
inline std::uint32_t min(std::uint32_t a, std::uint32_t b) { return std::min(a, b); }
inline std::uint64_t min(std::uint64_t a, std::uint64_t b) { return std::min(a, b); }

template <class T>
T __shfl_xor_sync(unsigned mask, T value, unsigned lane_mask) {
  using flashoptim::emulated_cuda::Exchange;
  const auto& words = Exchange(mask, 1U + lane_mask, std::bit_cast<std::uint32_t>(value));
  return std::bit_cast<T>(words[(threadIdx.x % words.size()) ^ lane_mask]);
}
inline int __any_sync(unsigned mask, bool predicate) {
  const auto& words = flashoptim::emulated_cuda::Exchange(mask, 0, predicate ? 1U : 0U);
  return std::any_of(words.begin(), words.end(), [](std::uint32_t word) { return word != 0; });
}

enum cudaError_t { cudaSuccess, cudaErrorMemoryAllocation };
enum cudaMemcpyKind { cudaMemcpyHostToDevice, cudaMemcpyDeviceToHost };
using cudaStream_t = struct CUstream_st*;
struct cudaFuncAttributes {};

const char* cudaGetErrorString(cudaError_t error);
cudaError_t cudaGetLastError();
cudaError_t cudaGetDeviceCount(int* count);
cudaError_t cudaGetDevice(int* device);
cudaError_t cudaSetDevice(int device);
cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* attributes, const void* kernel);
cudaError_t cudaMalloc(void** memory, std::size_t size);
template <class T>
cudaError_t cudaMalloc(T** memory, std::size_t size) {
  void* bytes = nullptr;
  const cudaError_t error = cudaMalloc(&bytes, size);
  *memory = static_cast<T*>(bytes);
  return error;
}
cudaError_t cudaFree(void* memory);
cudaError_t cudaMemsetAsync(void* memory, int byte, std::size_t size, cudaStream_t stream);
cudaError_t cudaMemcpyAsync(void* target, const void* source, std::size_t size, cudaMemcpyKind kind,
                            cudaStream_t stream);
cudaError_t cudaStreamSynchronize(cudaStream_t stream);

template <class... Parameters>
cudaError_t cudaLaunchKernel(void (*kernel)(Parameters...), dim3 grid, dim3 block, void** arguments,
                             std::size_t /*shared*/, cudaStream_t /*stream*/) {
  const auto thread = [&]<std::size_t... i>(std::index_sequence<i...>) {
    kernel(*static_cast<Parameters*>(arguments[i])...);
  };
  flashoptim::emulated_cuda::Launch(reinterpret_cast<const void*>(kernel), grid.x, block.x,
                                    [&] { thread(std::index_sequence_for<Parameters...>()); });
  return cudaSuccess;
}

// NOLINTEND(bugprone-reserved-identifier,readability-identifier-naming)

#endif  // FLASHOPTIM_TESTS_EMULATED_CUDA_CUDA_RUNTIME_H_

// The instructions that have no name in CUDA's C++, and a barrier to the compiler. A folder with a
// file of this name, earlier in the include path, lets a processor without them run the kernels.
#ifndef FLASHOPTIM_CUDA_INSTRUCTIONS_CUH_
#define FLASHOPTIM_CUDA_INSTRUCTIONS_CUH_

#include <cuda_runtime.h>

#include <cstdint>

namespace flashoptim::cuda {

// Within a few units in the last place; subnormal arguments and results count as 0.
__device__ __forceinline__ float EstimateReciprocal(float x) {
  float estimate;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(estimate) : "f"(x));
  return estimate;
}
__device__ __forceinline__ float EstimateReciprocalRoot(float x) {
  float estimate;
  asm("rsqrt.approx.ftz.f32 %0, %1;" : "=f"(estimate) : "f"(x));
  return estimate;
}

// Bytes of a and b by selector (PTX prmt).
__device__ __forceinline__ std::uint32_t Permute(std::uint32_t a, std::uint32_t b,
                                                 std::uint32_t selector) {
  std::uint32_t result;
  asm("prmt.b32 %0, %1, %2, %3;" : "=r"(result) : "r"(a), "r"(b), "r"(selector));
  return result;
}

// Hides where a value came from, so that what was computed from it before is not kept in registers
// but computed again.
__device__ __forceinline__ std::uint32_t Opaque(std::uint32_t x) {
  asm volatile("" : "+r"(x));
  return x;
}

}  // namespace flashoptim::cuda

#endif  // FLASHOPTIM_CUDA_INSTRUCTIONS_CUH_

// In place of src/cuda/instructions.cuh: the same by a CPU.
#ifndef FLASHOPTIM_TESTS_EMULATED_CUDA_INSTRUCTIONS_CUH_
#define FLASHOPTIM_TESTS_EMULATED_CUDA_INSTRUCTIONS_CUH_

#include <cuda_runtime.h>

#include <cmath>
#include <cstdint>

namespace flashoptim::cuda {

inline float WithoutSubnormals(float x) {
  return std::fpclassify(x) == FP_SUBNORMAL ? std::copysign(0.0F, x) : x;
}

// A GPU's estimates are up to two units off. The kernels follow them with a Newton step, after
// which both of them and these are the correctly rounded result: tests/cuda checks a GPU's for
// every float, and emulated_cuda_test.cc these.
inline float EstimateReciprocal(float x) {
  return WithoutSubnormals(static_cast<float>(1.0 / static_cast<double>(WithoutSubnormals(x))));
}
inline float EstimateReciprocalRoot(float x) {
  return WithoutSubnormals(
      static_cast<float>(1.0 / std::sqrt(static_cast<double>(WithoutSubnormals(x)))));
}

// Each hexadecimal digit of the selector names a byte of the pair, 0 to 3 in a; 8 is added to have
// the byte's sign instead.
inline std::uint32_t Permute(std::uint32_t a, std::uint32_t b, std::uint32_t selector) {
  const std::uint64_t pair = (std::uint64_t{b} << 32) | a;
  std::uint32_t result = 0;
  for (unsigned i = 0; i < 4; ++i) {
    const std::uint32_t digit = (selector >> (4 * i)) & 15U;
    auto byte = static_cast<std::uint32_t>(pair >> (8 * (digit & 7U))) & 0xffU;
    if ((digit & 8U) != 0) byte = (byte & 0x80U) != 0 ? 0xffU : 0U;
    result |= byte << (8 * i);
  }
  return result;
}

inline std::uint32_t Opaque(std::uint32_t x) { return x; }

}  // namespace flashoptim::cuda

#endif  // FLASHOPTIM_TESTS_EMULATED_CUDA_INSTRUCTIONS_CUH_

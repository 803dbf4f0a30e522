// The formulas on the lanes of a CUDA thread.
#ifndef FLASHOPTIM_CUDA_CUDA_LANES_CUH_
#define FLASHOPTIM_CUDA_CUDA_LANES_CUH_

#include <cuda_runtime.h>

#include <cstdint>

#include "cuda/instructions.cuh"
#include "flashoptim/types.h"

namespace flashoptim::cuda {

#define FLASHOPTIM_FN __device__ __forceinline__
#include "core/formulas-inl.h"

// Reciprocal and root are the processor's own correctly rounded ones: right for every argument.
struct CarefulLanes {
  using F = float;
  using U = std::uint32_t;
  using M = bool;

  FLASHOPTIM_FN static F Set(float x) { return x; }
  FLASHOPTIM_FN static U SetU(std::uint32_t x) { return x; }
  FLASHOPTIM_FN static U Bits(F x) { return __float_as_uint(x); }
  FLASHOPTIM_FN static F AsFloat(U x) { return __uint_as_float(x); }

  FLASHOPTIM_FN static U Add(U a, U b) { return a + b; }
  FLASHOPTIM_FN static U Sub(U a, U b) { return a - b; }
  FLASHOPTIM_FN static U And(U a, U b) { return a & b; }
  FLASHOPTIM_FN static U AndNot(U a, U b) { return ~a & b; }
  FLASHOPTIM_FN static U Or(U a, U b) { return a | b; }
  FLASHOPTIM_FN static U Xor(U a, U b) { return a ^ b; }
  FLASHOPTIM_FN static U OrAnd(U a, U b, U c) { return a | (b & c); }
  template <int k>
  FLASHOPTIM_FN static U Shl(U x) {
    return x << k;
  }
  template <int k>
  FLASHOPTIM_FN static U Shr(U x) {
    return x >> k;
  }
  FLASHOPTIM_FN static U MulU(U a, U b) { return a * b; }
  FLASHOPTIM_FN static U MinU(U a, U b) { return min(a, b); }
  FLASHOPTIM_FN static U MaxU(U a, U b) { return max(a, b); }

  FLASHOPTIM_FN static F AddF(F a, F b) { return __fadd_rn(a, b); }
  FLASHOPTIM_FN static F SubF(F a, F b) { return __fsub_rn(a, b); }
  FLASHOPTIM_FN static F Mul(F a, F b) { return __fmul_rn(a, b); }
  FLASHOPTIM_FN static F Div(F a, F b) { return __fdiv_rn(a, b); }
  FLASHOPTIM_FN static F Fma(F a, F b, F c) { return __fmaf_rn(a, b, c); }
  FLASHOPTIM_FN static F Fms(F a, F b, F c) { return __fmaf_rn(a, b, -c); }
  FLASHOPTIM_FN static F Sqrt(F x) { return __fsqrt_rn(x); }
  FLASHOPTIM_FN static F Reciprocal(F x) { return __frcp_rn(x); }
  FLASHOPTIM_FN static F MaxF(F a, F b) { return fmaxf(a, b); }

  FLASHOPTIM_FN static M Less(F a, F b) { return a < b; }
  FLASHOPTIM_FN static M LessU(U a, U b) { return a < b; }
  FLASHOPTIM_FN static F Select(M m, F a, F b) { return m ? a : b; }
  FLASHOPTIM_FN static U SelectU(M m, U a, U b) { return m ? a : b; }
};

// An estimate with one Newton step, which is the correctly rounded result for every mantissa while
// arguments and results are normal (tests/cuda checks all of them); no slow-path branches. Of an
// infinity they make NaN, which the fast path takes for a reason to start over.
struct FastLanes : CarefulLanes {
  FLASHOPTIM_FN static F Sqrt(F x) {
    const F estimate = EstimateReciprocalRoot(x);
    const F root = __fmul_rn(x, estimate);
    const F half = __fmul_rn(0.5F, estimate);
    return __fmaf_rn(__fmaf_rn(-root, root, x), half, root);
  }
  FLASHOPTIM_FN static F Reciprocal(F x) {
    const F estimate = EstimateReciprocal(x);
    return __fmaf_rn(estimate, __fmaf_rn(-x, estimate, 1.0F), estimate);
  }
};

}  // namespace flashoptim::cuda

#endif  // FLASHOPTIM_CUDA_CUDA_LANES_CUH_

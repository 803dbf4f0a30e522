// Whether the fast reciprocal and root of cuda/cuda_lanes.cuh are the correctly rounded ones, for
// every float of the ranges in which the kernels use them (docs/format.md, section 8.1).
//
// Judged twice: against the processor's own rounded operations, and by exact arithmetic. The two
// midpoints between a float and its neighbours have 25 bits, so that their squares and their
// products with a float are exact in double; a result is the nearest one if the argument lies
// between what the midpoints stand for. Ties cannot occur.
//
// Exit status: 0 all right, 1 some are not, 2 no GPU.

#include <cuda_runtime.h>

#include <cstdint>
#include <cstdio>

#include "core/tensor_task.h"
#include "cuda/cuda_lanes.cuh"

namespace {

using flashoptim::cuda::CarefulLanes;
using flashoptim::cuda::FastLanes;

constexpr std::uint32_t kMantissas = 1U << 23;
constexpr int kExponentBias = 127;

// What went wrong how often, and the image of the first argument concerned.
struct Verdict {
  unsigned long long not_as_careful;
  unsigned long long not_nearest;
  unsigned long long careful_not_nearest;
  unsigned int first_image;
};

struct Midpoints {
  double below;
  double above;

  __device__ explicit Midpoints(float x) {
    const double value = x;
    below = 0.5 * (value + __uint_as_float(__float_as_uint(x) - 1U));
    above = 0.5 * (value + __uint_as_float(__float_as_uint(x) + 1U));
  }
};

struct ReciprocalCheck {
  static constexpr const char* kName = "reciprocal";
  static constexpr int kFirstExponent = -126;
  static constexpr int kLastExponent = 125;
  __device__ static float Fast(float x) { return FastLanes::Reciprocal(x); }
  __device__ static float Careful(float x) { return CarefulLanes::Reciprocal(x); }
  // Powers of two have an exact reciprocal, from which the midpoints keep off.
  __device__ static bool IsNearest(float x, float result) {
    const Midpoints midpoints(result);
    return midpoints.below * x < 1.0 && 1.0 < midpoints.above * x;
  }
};

struct RootCheck {
  static constexpr const char* kName = "square root";
  static constexpr int kFirstExponent = -102;
  static constexpr int kLastExponent = 127;
  __device__ static float Fast(float x) { return FastLanes::Sqrt(x); }
  __device__ static float Careful(float x) { return CarefulLanes::Sqrt(x); }
  __device__ static bool IsNearest(float x, float result) {
    const Midpoints midpoints(result);
    return midpoints.below * midpoints.below < x && x < midpoints.above * midpoints.above;
  }
};

__device__ bool IsPositiveNormal(float x) { return x >= 0x1p-126F && x <= 0x1.fffffep127F; }

template <class Check>
__global__ void CheckExponents(Verdict* verdict) {
  const std::uint32_t mantissa = blockIdx.x * blockDim.x + threadIdx.x;
  for (int exponent = Check::kFirstExponent; exponent <= Check::kLastExponent; ++exponent) {
    const auto biased = static_cast<std::uint32_t>(exponent + kExponentBias);
    const std::uint32_t image = biased << 23 | mantissa;
    const float x = __uint_as_float(image);
    const float fast = Check::Fast(x);
    const float careful = Check::Careful(x);
    const bool same = __float_as_uint(fast) == __float_as_uint(careful);
    const bool nearest = IsPositiveNormal(fast) && Check::IsNearest(x, fast);
    const bool careful_nearest = IsPositiveNormal(careful) && Check::IsNearest(x, careful);
    if (same && nearest && careful_nearest) continue;
    if (!same) atomicAdd(&verdict->not_as_careful, 1ULL);
    if (!nearest) atomicAdd(&verdict->not_nearest, 1ULL);
    if (!careful_nearest) atomicAdd(&verdict->careful_not_nearest, 1ULL);
    atomicMin(&verdict->first_image, image);
  }
}

bool Succeeded(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return true;
  std::fprintf(stderr, "exhaustive_lanes: %s: %s\n", what, cudaGetErrorString(error));
  return false;
}

// False if something was wrong, with a line that says what.
template <class Check>
bool AllRight(Verdict* on_device) {
  Verdict verdict = {0, 0, 0, ~0U};
  constexpr unsigned kThreads = 256;
  bool ran = Succeeded(cudaMemcpy(on_device, &verdict, sizeof(verdict), cudaMemcpyHostToDevice),
                       "cannot write");
  if (ran) CheckExponents<Check><<<kMantissas / kThreads, kThreads>>>(on_device);
  ran = ran && Succeeded(cudaGetLastError(), "cannot launch") &&
        Succeeded(cudaMemcpy(&verdict, on_device, sizeof(verdict), cudaMemcpyDeviceToHost),
                  "cannot read");
  if (!ran) return false;
  constexpr unsigned long long kExponents = Check::kLastExponent - Check::kFirstExponent + 1;
  std::printf(
      "%s: %llu arguments from 2^%d to below 2^%d: %llu differ from the rounded operation, "
      "%llu are not the nearest float, %llu of the rounded operation are not\n",
      Check::kName, kExponents * kMantissas, Check::kFirstExponent, Check::kLastExponent + 1,
      verdict.not_as_careful, verdict.not_nearest, verdict.careful_not_nearest);
  if (verdict.first_image == ~0U) return true;
  std::printf("%s: first wrong at image 0x%08x\n", Check::kName, verdict.first_image);
  return false;
}

}  // namespace

int main() {
  Verdict* verdict = nullptr;
  if (!Succeeded(cudaMalloc(&verdict, sizeof(Verdict)), "no usable GPU")) return 2;
  const bool reciprocals = AllRight<ReciprocalCheck>(verdict);
  const bool roots = AllRight<RootCheck>(verdict);
  cudaFree(verdict);
  return reciprocals && roots ? 0 : 1;
}

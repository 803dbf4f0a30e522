#include "streams.h"

#include <c10/cuda/CUDAStream.h>

namespace flashoptim {
namespace {

c10::cuda::CUDAStream Current(std::int32_t gpu) {
  return c10::cuda::getCurrentCUDAStream(static_cast<c10::DeviceIndex>(gpu));
}

}  // namespace

void* CurrentStream(std::int32_t gpu) { return Current(gpu).stream(); }

void WaitForCurrentStream(std::int32_t gpu) { Current(gpu).synchronize(); }

}  // namespace flashoptim

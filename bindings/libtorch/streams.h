// What only LibTorch's CUDA half knows. A build without CUDA has no_cuda.cpp in its place.
#ifndef FLASHOPTIM_LIBTORCH_STREAMS_H_
#define FLASHOPTIM_LIBTORCH_STREAMS_H_

#include <cstdint>

namespace flashoptim {

/// LibTorch's current stream of a GPU, a cudaStream_t.
void* CurrentStream(std::int32_t gpu);

/// Waits for it.
void WaitForCurrentStream(std::int32_t gpu);

}  // namespace flashoptim

#endif  // FLASHOPTIM_LIBTORCH_STREAMS_H_

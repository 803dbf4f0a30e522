// The CUDA backend. `backend.cu` implements it, or `no_cuda.cpp` in builds without CUDA.
#ifndef FLASHOPTIM_CUDA_BACKEND_H_
#define FLASHOPTIM_CUDA_BACKEND_H_

#include <string>

namespace flashoptim::cuda {

/// Whether this build has CUDA kernels and this machine a GPU that runs them.
bool Available();

/// Why or why not, in a sentence.
std::string Status();

}  // namespace flashoptim::cuda

#endif  // FLASHOPTIM_CUDA_BACKEND_H_

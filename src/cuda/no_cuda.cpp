#include "cuda/backend.h"

namespace flashoptim::cuda {

bool Available() { return false; }

std::string Status() { return "this build of flashoptim has no CUDA kernels"; }

}  // namespace flashoptim::cuda

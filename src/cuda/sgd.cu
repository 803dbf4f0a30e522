#include "cuda/kernel_set.cuh"

namespace flashoptim::cuda {

KernelsByForm SgdKernels() { return MakeKernels<KernelRule::kSgd>(); }

}  // namespace flashoptim::cuda

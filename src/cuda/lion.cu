#include "cuda/kernel_set.cuh"

namespace flashoptim::cuda {

KernelsByForm LionKernels() { return MakeKernels<KernelRule::kLion>(); }

}  // namespace flashoptim::cuda

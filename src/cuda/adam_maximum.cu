#include "cuda/kernel_set.cuh"

namespace flashoptim::cuda {

KernelsByForm AdamMaximumKernels() { return MakeKernels<KernelRule::kAdamMaximum>(); }

}  // namespace flashoptim::cuda

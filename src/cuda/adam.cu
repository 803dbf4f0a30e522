#include "cuda/kernel_set.cuh"

namespace flashoptim::cuda {

KernelsByForm AdamKernels() { return MakeKernels<KernelRule::kAdam>(); }

}  // namespace flashoptim::cuda

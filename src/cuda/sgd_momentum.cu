#include "cuda/kernel_set.cuh"

namespace flashoptim::cuda {

KernelsByForm SgdMomentumKernels() { return MakeKernels<KernelRule::kSgdMomentum>(); }

}  // namespace flashoptim::cuda

#include "cuda/kernel_set.cuh"

namespace flashoptim::cuda {

const KernelSet& SgdMomentumKernels() {
  static const KernelSet kernels = MakeKernels<KernelRule::kSgdMomentum>();
  return kernels;
}

}  // namespace flashoptim::cuda

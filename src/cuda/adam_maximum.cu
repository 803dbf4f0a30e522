#include "cuda/kernel_set.cuh"

namespace flashoptim::cuda {

const KernelSet& AdamMaximumKernels() {
  static const KernelSet kernels = MakeKernels<KernelRule::kAdamMaximum>();
  return kernels;
}

}  // namespace flashoptim::cuda

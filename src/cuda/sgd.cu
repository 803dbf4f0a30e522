#include "cuda/kernel_set.cuh"

namespace flashoptim::cuda {

const KernelSet& SgdKernels() {
  static const KernelSet kernels = MakeKernels<KernelRule::kSgd>();
  return kernels;
}

}  // namespace flashoptim::cuda

#include "cuda/kernel_set.cuh"

namespace flashoptim::cuda {

const KernelSet& LionKernels() {
  static const KernelSet kernels = MakeKernels<KernelRule::kLion>();
  return kernels;
}

}  // namespace flashoptim::cuda

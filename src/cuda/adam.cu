#include "cuda/kernel_set.cuh"

namespace flashoptim::cuda {

const KernelSet& AdamKernels() {
  static const KernelSet kernels = MakeKernels<KernelRule::kAdam>();
  return kernels;
}

}  // namespace flashoptim::cuda

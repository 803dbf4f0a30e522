// The kernels of one rule as a table by form.
#ifndef FLASHOPTIM_CUDA_KERNEL_SET_CUH_
#define FLASHOPTIM_CUDA_KERNEL_SET_CUH_

#include "cuda/kernels.h"
#include "cuda/step_kernel.cuh"

namespace flashoptim::cuda {

template <KernelRule kRule>
KernelsByForm MakeKernels() {
  KernelsByForm kernels;
  kernels.fill(StepCarefulKernel<kRule>);
  if constexpr (HasFirst(kRule)) {
    kernels[FastForm(false, false, true)] = StepFastKernel<kRule, RootFirst, RootSecond, 8, true>;
    kernels[FastForm(false, true, true)] = StepFastKernel<kRule, RootFirst, RootSecond, 16, true>;
    kernels[FastForm(false, false, false)] = StepFastKernel<kRule, RootFirst, RootSecond, 8, false>;
    kernels[FastForm(false, true, false)] = StepFastKernel<kRule, RootFirst, RootSecond, 16, false>;
    kernels[FastForm(true, false, true)] =
        StepFastKernel<kRule, SoftsignFirst, SoftsignSecond, 8, true>;
    kernels[FastForm(true, true, true)] =
        StepFastKernel<kRule, SoftsignFirst, SoftsignSecond, 16, true>;
    kernels[FastForm(true, false, false)] =
        StepFastKernel<kRule, SoftsignFirst, SoftsignSecond, 8, false>;
    kernels[FastForm(true, true, false)] =
        StepFastKernel<kRule, SoftsignFirst, SoftsignSecond, 16, false>;
  }
  return kernels;
}

}  // namespace flashoptim::cuda

#endif  // FLASHOPTIM_CUDA_KERNEL_SET_CUH_

// The kernels of one rule as tables by form.
#ifndef FLASHOPTIM_CUDA_KERNEL_SET_CUH_
#define FLASHOPTIM_CUDA_KERNEL_SET_CUH_

#include "cuda/kernels.h"
#include "cuda/step_kernel.cuh"

namespace flashoptim::cuda {

// Scalars on the device are for CUDA graphs and for GradScaler: there only the default codec has
// fast kernels, with the gradient scaled.
template <KernelRule kRule>
KernelSet MakeKernels() {
  KernelSet kernels;
  kernels.host_scalars.fill(StepCarefulKernel<kRule, false>);
  kernels.device_scalars.fill(StepCarefulKernel<kRule, true>);
  if constexpr (HasFirst(kRule)) {
    const auto set_codec = [&]<class First, class Second>(bool softsign, Codecs<First, Second>) {
      kernels.host_scalars[FastForm(softsign, false, true)] =
          StepFastKernel<kRule, First, Second, 8, true, false>;
      kernels.host_scalars[FastForm(softsign, true, true)] =
          StepFastKernel<kRule, First, Second, 16, true, false>;
      kernels.host_scalars[FastForm(softsign, false, false)] =
          StepFastKernel<kRule, First, Second, 8, false, false>;
      kernels.host_scalars[FastForm(softsign, true, false)] =
          StepFastKernel<kRule, First, Second, 16, false, false>;
    };
    set_codec(false, Codecs<RootFirst, RootSecond>());
    set_codec(true, Codecs<SoftsignFirst, SoftsignSecond>());
    for (const bool plain : {false, true}) {
      kernels.device_scalars[FastForm(false, false, plain)] =
          StepFastKernel<kRule, RootFirst, RootSecond, 8, false, true>;
      kernels.device_scalars[FastForm(false, true, plain)] =
          StepFastKernel<kRule, RootFirst, RootSecond, 16, false, true>;
    }
  }
  return kernels;
}

}  // namespace flashoptim::cuda

#endif  // FLASHOPTIM_CUDA_KERNEL_SET_CUH_

// The kernels of one rule as tables by form.
#ifndef FLASHOPTIM_CUDA_KERNEL_SET_CUH_
#define FLASHOPTIM_CUDA_KERNEL_SET_CUH_

#include <type_traits>

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
    const auto set_codec = [&]<class First, class Second, bool kPartsOfRows>(
                               bool softsign, Codecs<First, Second>,
                               std::bool_constant<kPartsOfRows>) {
      const auto set_form = [&]<int kCorrectionBits, bool kPlain>() {
        kernels.host_scalars[FastForm(softsign, kCorrectionBits == 16, kPlain, kPartsOfRows)] =
            StepFastKernel<kRule, First, Second, kCorrectionBits, kPlain, false, kPartsOfRows>;
      };
      set_form.template operator()<8, true>();
      set_form.template operator()<16, true>();
      set_form.template operator()<8, false>();
      set_form.template operator()<16, false>();
    };
    const auto set_root = [&]<bool kPartsOfRows>(std::bool_constant<kPartsOfRows> parts) {
      set_codec(false, Codecs<RootFirst, RootSecond>(), parts);
      for (const bool plain : {false, true}) {
        kernels.device_scalars[FastForm(false, false, plain, kPartsOfRows)] =
            StepFastKernel<kRule, RootFirst, RootSecond, 8, false, true, kPartsOfRows>;
        kernels.device_scalars[FastForm(false, true, plain, kPartsOfRows)] =
            StepFastKernel<kRule, RootFirst, RootSecond, 16, false, true, kPartsOfRows>;
      }
    };
    set_root(std::false_type());
    set_codec(true, Codecs<SoftsignFirst, SoftsignSecond>(), std::false_type());
    if constexpr (HasSecond(kRule)) set_root(std::true_type());
  }
  return kernels;
}

}  // namespace flashoptim::cuda

#endif  // FLASHOPTIM_CUDA_KERNEL_SET_CUH_

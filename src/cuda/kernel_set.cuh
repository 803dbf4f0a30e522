// The kernels of one rule as tables by form.
#ifndef FLASHOPTIM_CUDA_KERNEL_SET_CUH_
#define FLASHOPTIM_CUDA_KERNEL_SET_CUH_

#include <type_traits>
#include <utility>

#include "cuda/kernels.h"
#include "cuda/step_kernel.cuh"

namespace flashoptim::cuda {

// Scalars on the device are for CUDA graphs and for GradScaler, parts of rows for FSDP2: there only
// the default codec has fast kernels. With scalars on the device and where weights draw, every
// gradient is scaled: scaling by one costs 2 instructions per element or none; a kernel more costs
// 100 kilobytes per architecture, since each holds the careful step as well.
constexpr bool HasFastKernel(KernelRule rule, const FastForm& form, bool device_scalars) {
  if (!HasFirst(rule)) return false;
  if (form.stochastic_weight && form.wide_correction) return false;  // it leaves nothing to draw
  if (form.softsign) return !device_scalars && !form.parts_of_rows;
  return form.stochastic_weight || !form.parts_of_rows || HasSecond(rule);
}

template <KernelRule kRule, unsigned kNumber, bool kDeviceScalars>
Kernel KernelOf() {
  constexpr FastForm kForm = FormOfNumber(kNumber);
  if constexpr (HasFastKernel(kRule, kForm, kDeviceScalars)) {
    using First = std::conditional_t<kForm.softsign, SoftsignFirst, RootFirst>;
    using Second = std::conditional_t<kForm.softsign, SoftsignSecond, RootSecond>;
    constexpr int kCorrectionBits = kForm.wide_correction ? 16 : 8;
    constexpr bool kPlainGradient =
        !kForm.scaled_gradient && !kForm.stochastic_weight && !kDeviceScalars;
    return StepFastKernel<kRule, First, Second, kCorrectionBits, kPlainGradient,
                          kForm.stochastic_weight, kDeviceScalars, kForm.parts_of_rows>;
  } else {
    return StepCarefulKernel<kRule, kDeviceScalars>;
  }
}

template <KernelRule kRule>
KernelSet MakeKernels() {
  const auto by_form = []<bool kDeviceScalars, unsigned... kNumbers>(
      std::bool_constant<kDeviceScalars>, std::integer_sequence<unsigned, kNumbers...>) {
    return KernelsByForm{StepCarefulKernel<kRule, kDeviceScalars>,
                         KernelOf<kRule, kNumbers + 1, kDeviceScalars>()...};
  };
  constexpr std::make_integer_sequence<unsigned, kForms - 1> kNumbers;
  return {by_form(std::false_type(), kNumbers), by_form(std::true_type(), kNumbers)};
}

}  // namespace flashoptim::cuda

#endif  // FLASHOPTIM_CUDA_KERNEL_SET_CUH_

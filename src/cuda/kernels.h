// The kernels by rule and form of tensor.
#ifndef FLASHOPTIM_CUDA_KERNELS_H_
#define FLASHOPTIM_CUDA_KERNELS_H_

#include <array>
#include <cstdint>

#include "core/tensor_task.h"
#include "cuda/launch_table.h"

namespace flashoptim::cuda {

using Kernel = void (*)(LaunchTable);

/// What distinguishes the tensors that have fast kernels.
struct FastForm {
  bool softsign = false;
  bool wide_correction = false;    ///< of 16 bits
  bool scaled_gradient = false;    ///< or coupled weight decay
  bool parts_of_rows = false;      ///< that draw random numbers
  bool stochastic_weight = false;  ///< that draws random numbers: with a correction of 8 bits
};

/// Forms by number: 0 is any tensor at all, the others are FastForms.
inline constexpr unsigned kForms = 33;
using KernelsByForm = std::array<Kernel, kForms>;

constexpr unsigned NumberOf(const FastForm& form) {
  return 1U + (form.softsign ? 1U : 0U) + (form.wide_correction ? 2U : 0U) +
         (form.scaled_gradient ? 4U : 0U) + (form.parts_of_rows ? 8U : 0U) +
         (form.stochastic_weight ? 16U : 0U);
}
constexpr FastForm FormOfNumber(unsigned number) {
  const unsigned bits = number - 1U;
  return {(bits & 1U) != 0, (bits & 2U) != 0, (bits & 4U) != 0, (bits & 8U) != 0,
          (bits & 16U) != 0};
}

/// Kernels of one rule: scalars from the table, or from the device.
struct KernelSet {
  KernelsByForm host_scalars;
  KernelsByForm device_scalars;
};

/// One function per rule, each in a source file of its own, since they take long to compile. Forms
/// that a rule has no fast kernel for have the careful one.
const KernelSet& SgdKernels();
const KernelSet& SgdMomentumKernels();
const KernelSet& AdamKernels();
const KernelSet& AdamMaximumKernels();
const KernelSet& LionKernels();

/// Makes the scalars of a step on the device and counts the step, unless an infinity was found.
void PrepareScalars(const PrepareTable& table, void* stream);

/// Marks tensors whose gradient is not finite: flags[i] = 1 for entry i of the table.
void FindNonfiniteKernel(const LaunchTable& table, std::uint32_t blocks, std::uint8_t* flags,
                         void* stream);

}  // namespace flashoptim::cuda

#endif  // FLASHOPTIM_CUDA_KERNELS_H_

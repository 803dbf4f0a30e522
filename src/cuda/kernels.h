// The kernels by rule and form of tensor.
#ifndef FLASHOPTIM_CUDA_KERNELS_H_
#define FLASHOPTIM_CUDA_KERNELS_H_

#include <array>
#include <cstdint>

#include "core/tensor_task.h"
#include "cuda/launch_table.h"

namespace flashoptim::cuda {

using Kernel = void (*)(LaunchTable);

/// Form of a tensor: 0 is any at all; the others, which have fast kernels, are
/// 1 + softsign + 2 * (16-bit correction) + 4 * (scaled or coupled gradient) + 8 * (parts of rows
/// that draw random numbers).
inline constexpr unsigned kForms = 17;
using KernelsByForm = std::array<Kernel, kForms>;

constexpr unsigned FastForm(bool softsign, bool wide_correction, bool plain_gradient,
                            bool parts_of_rows) {
  return 1U + (softsign ? 1U : 0U) + (wide_correction ? 2U : 0U) + (plain_gradient ? 0U : 4U) +
         (parts_of_rows ? 8U : 0U);
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

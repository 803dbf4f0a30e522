// The CUDA backend. `backend.cc` and the kernels implement it, or `no_cuda.cpp` in builds without
// CUDA.
#ifndef FLASHOPTIM_CUDA_BACKEND_H_
#define FLASHOPTIM_CUDA_BACKEND_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "core/tensor_task.h"

namespace flashoptim::cuda {

/// Whether this build has CUDA kernels and this machine a GPU that runs them.
bool Available();

/// Why or why not, in a sentence.
std::string Status();

/// Loads the kernels of a rule on a device. Without it CUDA does so at their first launch.
void LoadKernels(int device, Rule rule);

/// Steps tensors of one GPU. What it needs on the GPU is allocated when it is made, but for the
/// flags of FindNonfinite.
class Stepper {
 public:
  Stepper() = default;
  virtual ~Stepper() = default;
  Stepper(const Stepper&) = delete;
  Stepper& operator=(const Stepper&) = delete;

  /// Enqueues the step of every task that has a gradient: one launch per form of tensor and 183
  /// tensors. Neither allocates nor waits. With `sources`, one per task, the device makes the
  /// scalars and counts the steps, so that a CUDA graph can replay it. Throws std::runtime_error if
  /// a launch is refused.
  virtual void Step(Rule rule, std::span<const core::TensorTask> tasks,
                    std::span<const core::ScalarSource> sources,
                    const core::GradientScaling& scaling, void* stream) = 0;

  /// Sets flags[i] to 1 if the gradient of task i holds NaN or an infinity, else to 0. Waits for
  /// the stream.
  virtual void FindNonfinite(std::span<const core::TensorTask> tasks, void* stream,
                             std::span<std::uint8_t> flags) = 0;
};

/// A stepper for tensors on a device, of which at most `device_scalars` are stepped with sources.
/// Throws std::runtime_error where there is none.
std::unique_ptr<Stepper> MakeStepper(int device, std::size_t device_scalars);

/// Memory of a GPU, aligned to 256 bytes, and its release. Throws DeviceError.
void* Allocate(int device, std::size_t bytes);
void Release(void* memory) noexcept;

/// Copies behind the work that a stream holds, and waits. Throws DeviceError.
void CopyToDevice(int device, void* target, const void* source, std::size_t bytes, void* stream);
void CopyToHost(int device, void* target, const void* source, std::size_t bytes, void* stream);

}  // namespace flashoptim::cuda

#endif  // FLASHOPTIM_CUDA_BACKEND_H_

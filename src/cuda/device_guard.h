// Errors of the CUDA run-time library as exceptions, and the current device of a scope.
#ifndef FLASHOPTIM_CUDA_DEVICE_GUARD_H_
#define FLASHOPTIM_CUDA_DEVICE_GUARD_H_

#include <cuda_runtime.h>

#include <string>

#include "flashoptim/errors.h"

namespace flashoptim::cuda {

/// Throws DeviceError with CUDA's message, unless there is no error.
inline void Check(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return;
  throw DeviceError(std::string("CUDA: ") + what + ": " + cudaGetErrorString(error));
}

/// Makes a device current for the length of a scope.
class DeviceGuard {
 public:
  explicit DeviceGuard(int device) {
    Check(cudaGetDevice(&previous_), "cannot ask for the current device");
    if (device != previous_) Check(cudaSetDevice(device), "cannot use the tensor's device");
  }
  ~DeviceGuard() { cudaSetDevice(previous_); }
  DeviceGuard(const DeviceGuard&) = delete;
  DeviceGuard& operator=(const DeviceGuard&) = delete;

 private:
  int previous_ = 0;
};

}  // namespace flashoptim::cuda

#endif  // FLASHOPTIM_CUDA_DEVICE_GUARD_H_

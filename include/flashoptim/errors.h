// Exceptions of the library beside those of the standard library.
#ifndef FLASHOPTIM_ERRORS_H_
#define FLASHOPTIM_ERRORS_H_

#include <stdexcept>

namespace flashoptim {

/// A gradient holds NaN or an infinity and its group's policy is Nonfinite::kError. The message
/// names the tensor; nothing was written.
class NonfiniteGradientError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// The device that was asked for cannot be used: no CUDA in this build, no GPU, a failed CUDA call.
class DeviceError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

}  // namespace flashoptim

#endif  // FLASHOPTIM_ERRORS_H_

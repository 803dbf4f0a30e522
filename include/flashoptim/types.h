// Enumerations shared by the whole library. They depend on nothing.
#ifndef FLASHOPTIM_TYPES_H_
#define FLASHOPTIM_TYPES_H_

#include <cstdint>

namespace flashoptim {

/// Element type of a weight or a gradient.
enum class DType : std::uint8_t { kBFloat16 = 0, kFloat16 = 1, kFloat32 = 2 };

/// How moments are stored (docs/format.md, section 5).
enum class Codec : std::uint8_t {
  kNone = 0,      ///< fp32
  kRoot = 1,      ///< 8 bits, roots by exponent shift
  kSoftsign = 2,  ///< 8 bits, the companding of the paper
};

/// Update rule (docs/format.md, section 8). Adam and AdamW differ in the kind of weight decay only.
enum class Rule : std::uint8_t { kSgd = 0, kAdam = 1, kLion = 2 };

/// How weight decay enters the update.
enum class WeightDecay : std::uint8_t {
  kCoupled = 0,         ///< added to the gradient: SGD, Adam
  kDecoupled = 1,       ///< weight times 1 - lr * weight_decay: SGDW, AdamW, Lion
  kFullyDecoupled = 2,  ///< weight times 1 - (lr / initial_lr) * weight_decay
};

/// What happens when a gradient holds NaN or an infinity.
enum class Nonfinite : std::uint8_t {
  kPropagate = 0,  ///< the elements concerned become non-finite, as in torch
  kSkip = 1,       ///< tensors with such a gradient are left untouched and counted
  kError = 2,      ///< the step throws before anything is written
};

/// Where a tensor lives.
enum class DeviceType : std::uint8_t { kCpu = 0, kCuda = 1 };

/// Version of docs/format.md that this library writes.
inline constexpr int kFormatVersion = 1;

/// Elements of a group, which share one scale per moment (docs/format.md, section 2).
inline constexpr std::uint64_t kGroupSize = 64;

}  // namespace flashoptim

#endif  // FLASHOPTIM_TYPES_H_

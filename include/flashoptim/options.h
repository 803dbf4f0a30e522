// Options of the five optimizers, one plain struct each. Names and defaults are torch's, and those
// of the Python package flashoptim_cpp.
#ifndef FLASHOPTIM_OPTIONS_H_
#define FLASHOPTIM_OPTIONS_H_

#include <cstdint>
#include <optional>
#include <string>
#include <variant>

#include "flashoptim/types.h"

namespace flashoptim {

/// How a group's state is kept and its weights are rounded; the same for every rule.
struct StorageOptions {
  bool quantize = true;                  ///< false: moments in fp32, as codec none
  Codec codec = Codec::kRoot;            ///< of the moments
  std::int32_t master_weight_bits = 24;  ///< 16, 24 or 32; says nothing for fp32 weights
  bool stochastic_rounding = true;       ///< of the weights; else to nearest
  Nonfinite nonfinite = Nonfinite::kPropagate;
  std::uint64_t seed = 0;  ///< of the random stream (docs/format.md, section 3)
  friend bool operator==(const StorageOptions&, const StorageOptions&) = default;
};

/// SGD; weight decay is added to the gradient (docs/format.md, section 8.2).
struct SgdOptions {
  double lr = 1e-3;
  double momentum = 0.0;  ///< 0: no moment is kept
  double dampening = 0.0;
  double weight_decay = 0.0;
  bool nesterov = false;  ///< needs momentum and no dampening
  bool maximize = false;
  std::optional<double> initial_lr{};  ///< kept for schedules; default: lr when the group is made
  StorageOptions storage{};
  friend bool operator==(const SgdOptions&, const SgdOptions&) = default;
};

/// SGD with decoupled weight decay (section 8.2).
struct SgdwOptions {
  double lr = 1e-3;
  double momentum = 0.0;
  double dampening = 0.0;
  double weight_decay = 0.0;
  bool nesterov = false;
  bool maximize = false;
  bool decouple_lr = false;  ///< decay by (lr / initial_lr) * weight_decay, not lr * weight_decay
  std::optional<double> initial_lr{};  ///< for decouple_lr; default: lr when the group is made
  StorageOptions storage{};
  friend bool operator==(const SgdwOptions&, const SgdwOptions&) = default;
};

/// Adam; weight decay is added to the gradient (section 8.1).
struct AdamOptions {
  double lr = 1e-3;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  double weight_decay = 0.0;
  bool amsgrad = false;
  bool maximize = false;
  std::optional<double> initial_lr{};  ///< kept for schedules; default: lr when the group is made
  StorageOptions storage{};
  friend bool operator==(const AdamOptions&, const AdamOptions&) = default;
};

/// Adam with decoupled weight decay (section 8.1).
struct AdamWOptions {
  double lr = 1e-3;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  double weight_decay = 1e-2;
  bool amsgrad = false;
  bool maximize = false;
  bool decouple_lr = false;
  std::optional<double> initial_lr{};
  StorageOptions storage{};
  friend bool operator==(const AdamWOptions&, const AdamWOptions&) = default;
};

/// Lion; weight decay is decoupled (section 8.3).
struct LionOptions {
  double lr = 1e-3;
  double beta1 = 0.9;
  double beta2 = 0.99;
  double weight_decay = 0.0;
  bool maximize = false;
  bool decouple_lr = false;
  std::optional<double> initial_lr{};
  StorageOptions storage{};
  friend bool operator==(const LionOptions&, const LionOptions&) = default;
};

/// The options of one parameter group. All groups of an optimizer hold the same alternative.
using Options = std::variant<SgdOptions, SgdwOptions, AdamOptions, AdamWOptions, LionOptions>;

/// "SGD", "SGDW", "Adam", "AdamW" or "Lion".
std::string NameOf(const Options& options);

}  // namespace flashoptim

#endif  // FLASHOPTIM_OPTIONS_H_

// Hyper-parameters of the update rules.
#ifndef FLASHOPTIM_HYPERPARAMETERS_H_
#define FLASHOPTIM_HYPERPARAMETERS_H_

#include <cstdint>

#include "flashoptim/types.h"

namespace flashoptim {

/// Hyper-parameters of one parameter group, as torch names them. A rule reads those it has.
struct Hyperparameters {
  double lr = 1e-3;
  double initial_lr = 1e-3;  ///< for WeightDecay::kFullyDecoupled
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  double momentum = 0.0;
  double dampening = 0.0;
  double weight_decay = 0.0;
  WeightDecay weight_decay_kind = WeightDecay::kCoupled;
  bool nesterov = false;
  bool maximize = false;
  bool stochastic_rounding = true;  ///< of the weights; else to nearest
  Nonfinite nonfinite = Nonfinite::kPropagate;
  std::uint64_t seed = 0;
};

}  // namespace flashoptim

#endif  // FLASHOPTIM_HYPERPARAMETERS_H_

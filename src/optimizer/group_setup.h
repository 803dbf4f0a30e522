// What the options of a group come to: rule, hyper-parameters, and the form of the state.
#ifndef FLASHOPTIM_OPTIMIZER_GROUP_SETUP_H_
#define FLASHOPTIM_OPTIMIZER_GROUP_SETUP_H_

#include <cstdint>
#include <span>
#include <string>

#include "flashoptim/hyperparameters.h"
#include "flashoptim/options.h"
#include "flashoptim/state.h"
#include "flashoptim/types.h"

namespace flashoptim {

/// A moment that a rule keeps (docs/format.md, section 9).
struct MomentSpec {
  const char* name;
  StateKind kind;
  StateKind scale_kind;
  friend bool operator==(const MomentSpec&, const MomentSpec&) = default;
};

struct GroupSetup {
  Rule rule = Rule::kSgd;
  Hyperparameters hyperparameters;
  Codec codec = Codec::kNone;  ///< that is asked for; none without `quantize`
  std::int32_t master_weight_bits = 24;
  std::span<const MomentSpec> moments;  ///< of a table that is always there

  /// Whether a state that was made for one setup fits the other.
  bool SameState(const GroupSetup& other) const;
};

/// Throws std::invalid_argument, naming the value behind `whose`, if an option is not valid;
/// allocates nothing otherwise.
GroupSetup SetupOf(const Options& options, const std::string& whose);

/// Hyper-parameters that each alternative has.
double LearningRate(const Options& options);
void SetLearningRate(Options& options, double lr);
/// Fixes an `initial_lr` that was left open at the value given.
void FixInitialLearningRate(Options& options, double lr);

}  // namespace flashoptim

#endif  // FLASHOPTIM_OPTIMIZER_GROUP_SETUP_H_

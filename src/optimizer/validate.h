// Checks that happen before anything is written. Every error names the tensor, the value and a
// remedy.
#ifndef FLASHOPTIM_OPTIMIZER_VALIDATE_H_
#define FLASHOPTIM_OPTIMIZER_VALIDATE_H_

#include <cstdint>

#include "core/tensor_task.h"
#include "flashoptim/plan.h"

namespace flashoptim {

/// Throws std::invalid_argument if the binding is inconsistent in itself or with the rule.
void CheckBinding(Rule rule, const TensorBinding& binding, std::uint32_t parameter_groups);

/// The kernel that a binding needs: which moments it keeps decides.
core::KernelRule KernelRuleOf(Rule rule, const TensorBinding& binding);

/// Throws std::invalid_argument if the group asks for a moment that its tensor does not have.
void CheckMomentsAgainst(const Hyperparameters& hyperparameters, Rule rule,
                         const TensorBinding& binding);

}  // namespace flashoptim

#endif  // FLASHOPTIM_OPTIMIZER_VALIDATE_H_

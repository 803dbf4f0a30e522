// Checks that happen before anything is written. Every error names the tensor, the value and a
// remedy.
#ifndef FLASHOPTIM_OPTIMIZER_VALIDATE_H_
#define FLASHOPTIM_OPTIMIZER_VALIDATE_H_

#include <cstdint>
#include <span>
#include <string>

#include "core/tensor_task.h"
#include "flashoptim/layout.h"
#include "flashoptim/plan.h"

namespace flashoptim {

/// Throws std::invalid_argument if the binding is inconsistent in itself or with the rule.
void CheckBinding(Rule rule, const TensorBinding& binding, std::uint32_t parameter_groups);

/// The kernel that a binding needs: which moments it keeps decides.
core::KernelRule KernelRuleOf(Rule rule, const TensorBinding& binding);

/// Throws std::invalid_argument if the group asks for a moment that its tensor does not have.
void CheckMomentsAgainst(const Hyperparameters& hyperparameters, Rule rule,
                         const TensorBinding& binding);

/// CheckHyperparameters and GeometryOf with `whose` before the message of an error.
void CheckHyperparametersOf(const std::string& whose, Rule rule,
                            const Hyperparameters& hyperparameters);
Geometry GeometryOfNamed(const std::string& whose, std::span<const std::int64_t> sizes,
                         std::span<const std::int64_t> strides);

}  // namespace flashoptim

#endif  // FLASHOPTIM_OPTIMIZER_VALIDATE_H_

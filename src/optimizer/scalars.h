// Host scalars of a tensor-step (docs/format.md, sections 3 and 8).
#ifndef FLASHOPTIM_OPTIMIZER_SCALARS_H_
#define FLASHOPTIM_OPTIMIZER_SCALARS_H_

#include <cstdint>

#include "core/tensor_task.h"
#include "flashoptim/plan.h"

namespace flashoptim {

/// The scalars of step `step` (1 for a tensor's first), computed in binary64 and rounded once.
core::StepScalars MakeScalars(Rule rule, const Hyperparameters& hyperparameters,
                              std::uint64_t step);

/// Fills seeds[purpose] for all purposes of the random stream.
void MakeStreamSeeds(std::uint64_t seed, std::uint64_t key, std::uint64_t step,
                     std::uint32_t (&seeds)[4]);

}  // namespace flashoptim

#endif  // FLASHOPTIM_OPTIMIZER_SCALARS_H_

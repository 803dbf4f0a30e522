// The instruction sets that the CPU backend is compiled for, and the choice among them.
#ifndef FLASHOPTIM_CPU_TARGETS_H_
#define FLASHOPTIM_CPU_TARGETS_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "core/tensor_task.h"

namespace flashoptim::cpu {

/// Steps the groups [begin, end) of one tensor.
using StepGroupsFunction = void (*)(const core::TensorTask& task, std::uint64_t begin,
                                    std::uint64_t end);

/// One compiled target.
struct Target {
  std::string_view name;
  StepGroupsFunction step_groups;
};

/// The targets that this machine can run, best first; the last one is always `scalar`.
const std::vector<Target>& SupportedTargets();

/// The target in use: the best one, or the one that FLASHOPTIM_CPU_TARGET names. Throws
/// std::invalid_argument if that one is unknown or cannot run here.
const Target& ChosenTarget();

/// Overrides the choice for this process; same errors.
void ChooseTarget(std::string_view name);

/// The step of a SIMD target, or null where it is not compiled in or the machine lacks it.
StepGroupsFunction SimdStepGroups(std::string_view target);

/// The same for the target `avx512_vbmi`, which needs the target `avx512`.
StepGroupsFunction VbmiStepGroups();

}  // namespace flashoptim::cpu

#endif  // FLASHOPTIM_CPU_TARGETS_H_

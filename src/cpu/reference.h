// The scalar reference: one group of one tensor, with every special case of docs/format.md.
#ifndef FLASHOPTIM_CPU_REFERENCE_H_
#define FLASHOPTIM_CPU_REFERENCE_H_

#include <cstdint>

#include "core/tensor_task.h"

namespace flashoptim::cpu {

/// Steps group `group` of the tensor in `task` (counted from the tensor's own first group). The
/// SIMD targets hand groups with non-finite values over to it, so it is right for all.
void StepGroupReference(const core::TensorTask& task, std::uint64_t group);

/// Steps the groups [begin, end): the target `scalar`.
void StepGroupsReference(const core::TensorTask& task, std::uint64_t begin, std::uint64_t end);

}  // namespace flashoptim::cpu

#endif  // FLASHOPTIM_CPU_REFERENCE_H_

// The target avx512_vbmi: the step of what most training uses (bf16 weights with corrections, bf16
// gradients, codec `root`) with byte permutations. All else goes to the target avx512.
#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstring>

#include "core/tensor_task.h"
#include "cpu/decode_table.h"
#include "cpu/instruction_sets.h"
#include "cpu/made_once.h"
#include "cpu/targets.h"

#define HWY_WANT_AVX3_DL
#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_SSE4 | HWY_AVX2 | HWY_AVX3)
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/vbmi.cc"
#include <hwy/cache_control.h>
#include <hwy/foreach_target.h>  // IWYU pragma: keep
#include <hwy/highway.h>

#if HWY_TARGET == HWY_AVX3_DL

HWY_BEFORE_NAMESPACE();
namespace flashoptim::cpu::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;
using core::ElementSize;
using core::HasMaximum;
using core::HasSecond;
using core::KernelRule;
using core::TensorTask;

// What this target has no code for.
void StepGroupsElsewhere(const TensorTask& task, uint64_t begin, uint64_t end) {
  constexpr auto kFind = [] { return SimdStepGroups("avx512"); };
  MadeOnce<kFind>()(task, begin, end);
}

#undef FLASHOPTIM_FN
#define FLASHOPTIM_FN HWY_INLINE
// Each header needs those before it.
// clang-format off
#include "core/formulas-inl.h"
#include "cpu/highway_lanes-inl.h"
#include "cpu/group_view-inl.h"
#include "cpu/vbmi_bytes-inl.h"
#include "cpu/vbmi_run-inl.h"
#include "cpu/vbmi_masters-inl.h"
#include "cpu/vbmi_moments-inl.h"
#include "cpu/vbmi_group-inl.h"
// clang-format on

}  // namespace flashoptim::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif

#if HWY_ONCE

namespace flashoptim::cpu {

StepGroupsFunction VbmiStepGroups() {
#if HWY_TARGETS & HWY_AVX3_DL
  if (HasAvx512Vbmi()) return N_AVX3_DL::StepGroups;
#endif
  return nullptr;
}

}  // namespace flashoptim::cpu

#endif  // HWY_ONCE

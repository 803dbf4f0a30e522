// The SIMD targets: this file is compiled once per instruction set, through Highway's
// foreach_target.
#include <bit>
#include <cstdint>
#include <cstring>

#include "core/tensor_task.h"
#include "cpu/instruction_sets.h"
#include "cpu/reference.h"
#include "cpu/targets.h"

// Targets without fused multiply-add would round twice; AVX3_DL is for cpu/vbmi.cc.
#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_SSE4 | HWY_AVX3_DL)
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/simd.cc"
#include <hwy/cache_control.h>
#include <hwy/foreach_target.h>  // IWYU pragma: keep
#include <hwy/highway.h>

#if HWY_TARGET != HWY_EMU128 && HWY_TARGET != HWY_SCALAR

HWY_BEFORE_NAMESPACE();
namespace flashoptim::cpu::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;
using core::ElementSize;
using core::HasFirst;
using core::HasMaximum;
using core::HasSecond;
using core::KernelRule;
using core::TensorTask;

#undef FLASHOPTIM_FN
#define FLASHOPTIM_FN HWY_INLINE
// Each header needs those before it.
// clang-format off
#include "core/formulas-inl.h"
#include "cpu/highway_lanes-inl.h"
#include "cpu/group_view-inl.h"
#include "cpu/quads-inl.h"
#include "cpu/weights-inl.h"
#include "cpu/moments-inl.h"
#include "cpu/padded_group-inl.h"
#include "cpu/group_loop-inl.h"
// clang-format on

}  // namespace flashoptim::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif

#if HWY_ONCE

namespace flashoptim::cpu {

StepGroupsFunction SimdStepGroups(std::string_view target) {
#if HWY_TARGETS & HWY_AVX3
  if (target == "avx512" && HasAvx512()) return N_AVX3::StepGroups;
#endif
#if HWY_TARGETS & HWY_AVX2
  if (target == "avx2" && HasAvx2()) return N_AVX2::StepGroups;
#endif
#if HWY_TARGETS & HWY_NEON
  if (target == "neon") return N_NEON::StepGroups;
#endif
  return nullptr;
}

}  // namespace flashoptim::cpu

#endif  // HWY_ONCE

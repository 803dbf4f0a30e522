// What a backend needs to step one tensor: plain data, the same for every device.
#ifndef FLASHOPTIM_CORE_TENSOR_TASK_H_
#define FLASHOPTIM_CORE_TENSOR_TASK_H_

#include <cstdint>
#include <type_traits>

#include "flashoptim/hyperparameters.h"
#include "flashoptim/types.h"

namespace flashoptim::core {

/// Purposes of the random stream (docs/format.md, section 3), minus one.
enum Purpose : std::uint32_t {
  kSecondMoment = 0,
  kMaximum = 1,
  kWeightFirst = 2,
  kWeightSecond = 3,
};

/// Scalars of the update rules (docs/format.md, section 8), rounded once from binary64. A rule
/// reads those that its formulas name.
struct StepScalars {
  float gradient_multiplier = 1.0F;           ///< gamma
  float coupled_decay = 0.0F;                 ///< lambda
  float decay = 1.0F;                         ///< delta
  float step_size = 0.0F;                     ///< alpha of Adam; lr of SGD and Lion
  float first_decay = 0.0F;                   ///< beta1; momentum of SGD
  float first_rate = 1.0F;                    ///< 1 - beta1; tau of SGD
  float second_decay = 0.0F;                  ///< beta2
  float second_rate = 1.0F;                   ///< 1 - beta2
  float inverse_sqrt_bias_correction = 1.0F;  ///< kappa
  float eps = 0.0F;
};

/// The kernel that a tensor needs: the rule with the moments it keeps.
enum class KernelRule : std::uint8_t {
  kSgd = 0,          ///< no state
  kSgdMomentum = 1,  ///< first moment
  kAdam = 2,         ///< first and second moment
  kAdamMaximum = 3,  ///< amsgrad: and the maximum of the second
  kLion = 4,         ///< first moment
};

/// One tensor of a step. Addresses are on the tensor's device; `weight` and `gradient` have the
/// dtypes named below; moments are codes with scales, or fp32 without (codec `none`).
struct TensorTask {
  void* weight = nullptr;
  void* correction = nullptr;
  const void* gradient = nullptr;
  void* first = nullptr;
  void* second = nullptr;
  void* maximum = nullptr;
  float* first_scale = nullptr;
  float* second_scale = nullptr;
  float* maximum_scale = nullptr;

  std::uint64_t rows = 0;
  std::uint64_t row_length = 0;
  std::uint64_t first_group = 0;  ///< index in the whole tensor of this shard's first group
  /// Groups from one row to the next in the whole tensor, where this is a part of several rows of
  /// it; else 0: all groups follow each other.
  std::uint64_t group_stride = 0;

  StepScalars scalars;
  std::uint32_t stream_seeds[4] = {0, 0, 0, 0};  ///< by Purpose

  DType weight_dtype = DType::kFloat32;
  std::uint8_t correction_bits = 0;  ///< 0, 8 or 16
  DType gradient_dtype = DType::kFloat32;
  Codec codec = Codec::kNone;
  KernelRule rule = KernelRule::kSgd;
  bool nesterov = false;
  bool stochastic_weight = false;
  /// Elements of the whole's first group that lie before this shard: not 0 only with codec `none`,
  /// where weights alone draw random numbers.
  std::uint8_t first_in_group = 0;
};
static_assert(std::is_trivially_copyable_v<TensorTask>);

/// What the scalars and stream seeds of a tensor's step are made from, where a GPU makes them:
/// addresses are on the device.
struct ScalarSource {
  Hyperparameters hyperparameters;
  const float* lr = nullptr;  ///< instead of hyperparameters.lr, unless null
  float* step = nullptr;      ///< counted up by the step
  std::uint64_t stream_key = 0;
};

/// What GradScaler hands to an optimizer, on the device; null where it does not.
struct GradientScaling {
  const float* scale = nullptr;      ///< gradients are divided by it
  const float* found_inf = nullptr;  ///< not 0: the step must change nothing
};

constexpr std::uint64_t GroupsPerRow(std::uint64_t row_length) {
  return row_length / kGroupSize + (row_length % kGroupSize != 0 ? 1 : 0);
}

constexpr std::uint64_t GroupCount(const TensorTask& task) {
  return task.rows * GroupsPerRow(task.row_length);
}

/// Index, in the whole tensor, of group `group` of a task.
constexpr std::uint64_t GroupInWhole(const TensorTask& task, std::uint64_t group) {
  if (task.group_stride == 0) return task.first_group + group;
  const std::uint64_t groups_per_row = GroupsPerRow(task.row_length);
  return task.first_group + group / groups_per_row * task.group_stride + group % groups_per_row;
}

/// Place, in the whole tensor, of an element of a group of a task.
struct PlaceInWhole {
  std::uint64_t group;
  unsigned position;  ///< in the group
};

/// `whole` is the GroupInWhole of the element's group, `position` its own there.
constexpr PlaceInWhole ElementInWhole(const TensorTask& task, std::uint64_t whole,
                                      unsigned position) {
  const unsigned shifted = task.first_in_group + position;
  return {whole + shifted / kGroupSize, shifted % static_cast<unsigned>(kGroupSize)};
}

constexpr std::uint64_t ElementSize(DType dtype) { return dtype == DType::kFloat32 ? 4 : 2; }

constexpr bool HasFirst(KernelRule rule) { return rule != KernelRule::kSgd; }
constexpr bool HasSecond(KernelRule rule) {
  return rule == KernelRule::kAdam || rule == KernelRule::kAdamMaximum;
}
constexpr bool HasMaximum(KernelRule rule) { return rule == KernelRule::kAdamMaximum; }

}  // namespace flashoptim::core

#endif  // FLASHOPTIM_CORE_TENSOR_TASK_H_

// Plan once, step many: everything that can fail or allocate happens when a plan is made.
#ifndef FLASHOPTIM_PLAN_H_
#define FLASHOPTIM_PLAN_H_

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "flashoptim/hyperparameters.h"
#include "flashoptim/types.h"

namespace flashoptim {

/// One parameter with its state. All addresses stay the caller's and must outlive the plan. Tensors
/// of the weight's shape have the weight's memory order; scales are fp32 [rows, groups_per_row].
struct TensorBinding {
  std::string name;  ///< for error messages
  DeviceType device_type = DeviceType::kCpu;
  std::int32_t device_index = 0;

  void* weight = nullptr;
  DType weight_dtype = DType::kFloat32;
  std::int32_t correction_bits = 0;  ///< 0, 8 or 16; 0 with fp32 weights
  void* correction = nullptr;        ///< int8 or int16

  Codec codec = Codec::kNone;
  void* first_moment =
      nullptr;  ///< int8 codes, or fp32 with codec none; null where the rule has none
  float* first_moment_scale = nullptr;
  void* second_moment = nullptr;  ///< uint8 codes, or fp32
  float* second_moment_scale = nullptr;
  void* maximum = nullptr;  ///< amsgrad's maximum of the second moment
  float* maximum_scale = nullptr;

  std::uint64_t rows = 0;
  std::uint64_t row_length = 0;
  std::uint64_t first_group = 0;  ///< index in the whole tensor, when this is a shard of it
  /// Groups per row of the whole tensor, when this is a part of several of its rows; else 0.
  std::uint64_t group_stride = 0;
  /// Elements of the whole's first group that lie before this shard, where it begins inside one:
  /// below 64, and 0 unless the codec is none.
  std::uint32_t first_in_group = 0;

  float* step = nullptr;        ///< step count, in host memory
  bool step_on_device = false;  ///< or on the weight's GPU, where the step then makes its scalars
  std::uint64_t stream_key = 0;
  std::uint32_t parameter_group = 0;  ///< index into the hyper-parameters of a step
};

/// A tensor's gradient in one step; null data: no gradient, the tensor is left alone.
struct Gradient {
  const void* data = nullptr;
  DType dtype = DType::kFloat32;
};

/// Checks the hyper-parameters of a group; throws std::invalid_argument naming the value.
void CheckHyperparameters(Rule rule, const Hyperparameters& hyperparameters);

/// The tensors of one optimizer, ready to be stepped.
class Plan {
 public:
  /// Throws std::invalid_argument, naming the tensor, if a binding is inconsistent: a missing or
  /// superfluous state tensor, a correction beside fp32 weights; std::runtime_error if a GPU cannot
  /// be used.
  Plan(Rule rule, std::vector<TensorBinding> tensors, std::uint32_t parameter_groups);
  ~Plan();
  Plan(Plan&&) noexcept;
  Plan& operator=(Plan&&) noexcept;

  std::size_t size() const;

  /// Sets a group's hyper-parameters for the steps that follow. Throws std::invalid_argument.
  void SetHyperparameters(std::uint32_t parameter_group, const Hyperparameters& hyperparameters);

  /// Sets tensor i's gradient for the next step. Throws std::invalid_argument for an index out of
  /// range.
  void SetGradient(std::size_t i, Gradient gradient);

  /// Sets the CUDA stream on which the tensors of a GPU are stepped; the default stream until then.
  void SetStream(std::int32_t device_index, void* stream);

  /// Makes a group read its learning rate from a float on the GPU at each step, instead of from its
  /// hyper-parameters; null: no longer. Only for tensors whose step count is on the device.
  void SetDeviceLearningRate(std::uint32_t parameter_group, const float* lr);

  /// What GradScaler gives for a GPU: gradients are divided by *scale, and a *found_inf other than
  /// 0 makes the steps that follow change nothing. Null: neither. Only for tensors whose step count
  /// is on the device.
  void SetGradientScaling(std::int32_t device_index, const float* scale, const float* found_inf);

  /// Divides the gradients of all other tensors by `scale` in the steps that follow. Throws
  /// std::invalid_argument if it is not a finite number above 0.
  void SetGradientScale(float scale);

  /// Steps every tensor that has a gradient and counts its step. Allocates nothing; on a GPU it
  /// only enqueues, unless a policy of non-finite gradients has to look at them first. Throws
  /// NonfiniteGradientError before anything is written if a gradient is not finite and its group's
  /// policy is kError. Returns the number of tensors left untouched by kSkip.
  std::uint64_t Step();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace flashoptim

#endif  // FLASHOPTIM_PLAN_H_

#include "flashoptim/plan.h"

#include <algorithm>
#include <cmath>
#include <stdexcept>
#include <string>
#include <utility>

#include "core/tensor_task.h"
#include "cpu/backend.h"
#include "cpu/float_environment.h"
#include "cpu/scalar.h"
#include "cuda/backend.h"
#include "flashoptim/errors.h"
#include "optimizer/validate.h"

namespace flashoptim {
namespace {

core::TensorTask MakeTask(Rule rule, const TensorBinding& binding) {
  core::TensorTask task;
  task.weight = binding.weight;
  task.correction = binding.correction;
  task.first = binding.first_moment;
  task.second = binding.second_moment;
  task.maximum = binding.maximum;
  task.first_scale = binding.first_moment_scale;
  task.second_scale = binding.second_moment_scale;
  task.maximum_scale = binding.maximum_scale;
  task.rows = binding.row_length == 0 ? 0 : binding.rows;
  task.row_length = binding.row_length;
  task.first_group = binding.first_group;
  task.group_stride = binding.group_stride;
  task.first_in_group = static_cast<std::uint8_t>(binding.first_in_group);
  task.weight_dtype = binding.weight_dtype;
  task.correction_bits = static_cast<std::uint8_t>(binding.correction_bits);
  task.codec = binding.codec;
  task.rule = KernelRuleOf(rule, binding);
  return task;
}

// The tensors of one device.
struct Part {
  DeviceType device_type = DeviceType::kCpu;
  std::int32_t device_index = 0;
  std::vector<std::size_t> members;  // of the plan
  std::vector<core::TensorTask> tasks;
  std::vector<std::uint8_t> nonfinite;
  std::vector<cpu::Chunk> chunks;          // on the CPU
  std::unique_ptr<cuda::Stepper> stepper;  // on a GPU
  void* stream = nullptr;
  bool device_scalars = false;
  std::vector<core::ScalarSource> sources;  // with device_scalars
  core::GradientScaling scaling;

  void Finish() {
    nonfinite.resize(tasks.size());
    if (device_type == DeviceType::kCpu) {
      chunks = cpu::MakeChunks(tasks);
    } else {
      stepper = cuda::MakeStepper(device_index, sources.size());
    }
  }

  void FindNonfinite() {
    if (device_type == DeviceType::kCpu) {
      cpu::FindNonfinite(tasks, chunks, nonfinite);
    } else {
      stepper->FindNonfinite(tasks, stream, nonfinite);
    }
  }

  void Step(Rule rule) {
    if (device_type == DeviceType::kCpu) {
      cpu::Step(tasks, chunks);
    } else {
      stepper->Step(rule, tasks, sources, scaling, stream);
    }
  }
};

}  // namespace

struct Plan::Impl {
  Rule rule;
  std::vector<TensorBinding> tensors;
  std::vector<Hyperparameters> groups;
  std::vector<Part> parts;
  float gradient_scale = 1.0F;
  std::vector<const float*> device_lr;   // of each group
  std::vector<core::TensorTask*> tasks;  // of each tensor, in its part

  const Hyperparameters& GroupOf(std::size_t tensor) const {
    return groups[tensors[tensor].parameter_group];
  }

  bool AnyPolicyOtherThanPropagate() const {
    return std::any_of(groups.begin(), groups.end(), [](const Hyperparameters& group) {
      return group.nonfinite != Nonfinite::kPropagate;
    });
  }

  // Applies the policies: throws, or takes the gradients of skipped tensors away.
  std::uint64_t ApplyNonfinitePolicies() {
    for (Part& part : parts) {
      if (part.device_scalars) {
        throw std::invalid_argument(
            "nonfinite='skip' and 'error' have to wait for the gradients, which capturable=True "
            "rules out; choose nonfinite='propagate'");
      }
      part.FindNonfinite();
    }
    const auto for_policy = [&](Nonfinite policy, const auto& action) {
      for (const Part& part : parts) {
        for (std::size_t i = 0; i < part.members.size(); ++i) {
          const std::size_t tensor = part.members[i];
          if (part.nonfinite[i] != 0 && GroupOf(tensor).nonfinite == policy) action(tensor);
        }
      }
    };
    for_policy(Nonfinite::kError, [&](std::size_t tensor) {
      throw NonfiniteGradientError("the gradient of '" + tensors[tensor].name +
                                   "' holds NaN or an infinity; nothing was updated. Lower the "
                                   "learning rate or clip gradients, or choose nonfinite='skip' or "
                                   "'propagate'");
    });
    std::uint64_t skipped = 0;
    for_policy(Nonfinite::kSkip, [&](std::size_t tensor) {
      tasks[tensor]->gradient = nullptr;
      ++skipped;
    });
    return skipped;
  }

  void PrepareScalars() {
    for (Part& part : parts) {
      for (std::size_t i = 0; i < part.sources.size(); ++i) {
        const std::uint32_t group = tensors[part.members[i]].parameter_group;
        part.sources[i].hyperparameters = groups[group];
        part.sources[i].lr = device_lr[group];
      }
    }
    // Of the tensor before, which mostly is of the same group and as many steps old: scalars cost
    // more than all else that a step prepares.
    core::StepScalars scalars;
    const Hyperparameters* scalars_group = nullptr;
    std::uint64_t scalars_step = 0;
    for (std::size_t i = 0; i < tasks.size(); ++i) {
      core::TensorTask& task = *tasks[i];
      if (task.gradient == nullptr) continue;
      const TensorBinding& tensor = tensors[i];
      const Hyperparameters& group = GroupOf(i);
      if (!tensor.step_on_device) {
        const auto step = static_cast<std::uint64_t>(*tensor.step) + 1;
        if (scalars_group != &group || scalars_step != step) {
          scalars = scalar::MakeScalars<core::StepScalars>(rule, group, step);
          scalars.gradient_multiplier /= gradient_scale;
          scalars_group = &group;
          scalars_step = step;
        }
        task.scalars = scalars;
        scalar::MakeStreamSeeds<scalar::Lanes>(group.seed, tensor.stream_key, step,
                                               task.stream_seeds);
      }
      if (rule == Rule::kSgd) {
        // Without momentum the buffer, if there is one, has no part in the step (format, 8.2).
        task.rule = group.momentum == 0.0 ? core::KernelRule::kSgd : KernelRuleOf(rule, tensor);
      }
      task.nesterov = group.nesterov;
      task.stochastic_weight = group.stochastic_rounding;
    }
  }

  Part& PartOf(const TensorBinding& tensor) {
    for (Part& part : parts) {
      if (part.device_type == tensor.device_type && part.device_index == tensor.device_index) {
        return part;
      }
    }
    Part& part = parts.emplace_back();
    part.device_type = tensor.device_type;
    part.device_index = tensor.device_index;
    part.device_scalars = tensor.step_on_device;
    return part;
  }
};

Plan::Plan(Rule rule, std::vector<TensorBinding> tensors, std::uint32_t parameter_groups)
    : impl_(std::make_unique<Impl>()) {
  for (const TensorBinding& tensor : tensors) CheckBinding(rule, tensor, parameter_groups);
  impl_->rule = rule;
  impl_->tensors = std::move(tensors);
  impl_->groups.resize(parameter_groups);
  impl_->device_lr.resize(parameter_groups);
  for (std::size_t i = 0; i < impl_->tensors.size(); ++i) {
    Part& part = impl_->PartOf(impl_->tensors[i]);
    const TensorBinding& tensor = impl_->tensors[i];
    if (part.device_scalars != tensor.step_on_device) {
      throw std::invalid_argument("tensor '" + tensor.name +
                                  "': all parameter groups on a GPU must agree on capturable");
    }
    part.members.push_back(i);
    part.tasks.push_back(MakeTask(rule, tensor));
    if (part.device_scalars) part.sources.push_back({{}, nullptr, tensor.step, tensor.stream_key});
  }
  impl_->tasks.resize(impl_->tensors.size());
  for (Part& part : impl_->parts) {
    part.Finish();
    for (std::size_t i = 0; i < part.members.size(); ++i) {
      impl_->tasks[part.members[i]] = &part.tasks[i];
    }
  }
}

Plan::~Plan() = default;
Plan::Plan(Plan&&) noexcept = default;
Plan& Plan::operator=(Plan&&) noexcept = default;

std::size_t Plan::size() const { return impl_->tensors.size(); }

void Plan::SetHyperparameters(std::uint32_t parameter_group,
                              const Hyperparameters& hyperparameters) {
  if (parameter_group >= impl_->groups.size()) {
    throw std::invalid_argument("parameter group " + std::to_string(parameter_group) + " of " +
                                std::to_string(impl_->groups.size()));
  }
  CheckHyperparameters(impl_->rule, hyperparameters);
  for (const TensorBinding& tensor : impl_->tensors) {
    if (tensor.parameter_group == parameter_group) {
      CheckMomentsAgainst(hyperparameters, impl_->rule, tensor);
    }
  }
  impl_->groups[parameter_group] = hyperparameters;
}

void Plan::SetGradient(std::size_t i, Gradient gradient) {
  if (i >= impl_->tasks.size()) {
    throw std::invalid_argument("tensor " + std::to_string(i) + " of " +
                                std::to_string(impl_->tasks.size()));
  }
  impl_->tasks[i]->gradient = gradient.data;
  impl_->tasks[i]->gradient_dtype = gradient.dtype;
}

void Plan::SetStream(std::int32_t device_index, void* stream) {
  for (Part& part : impl_->parts) {
    if (part.device_type == DeviceType::kCuda && part.device_index == device_index) {
      part.stream = stream;
    }
  }
}

void Plan::SetDeviceLearningRate(std::uint32_t parameter_group, const float* lr) {
  impl_->device_lr.at(parameter_group) = lr;
}

void Plan::SetGradientScaling(std::int32_t device_index, const float* scale,
                              const float* found_inf) {
  for (Part& part : impl_->parts) {
    if (part.device_type == DeviceType::kCuda && part.device_index == device_index) {
      part.scaling = {scale, found_inf};
    }
  }
}

void Plan::SetGradientScale(float scale) {
  if (!(scale > 0.0F) || std::isinf(scale)) {
    throw std::invalid_argument("the gradient scale must be a finite number above 0, not " +
                                std::to_string(scale));
  }
  impl_->gradient_scale = scale;
}

std::uint64_t Plan::Step() {
  // The host scalars, too, must not depend on the caller's rounding mode.
  const cpu::DefaultFloatEnvironment environment;
  const std::uint64_t skipped =
      impl_->AnyPolicyOtherThanPropagate() ? impl_->ApplyNonfinitePolicies() : 0;
  impl_->PrepareScalars();
  for (Part& part : impl_->parts) part.Step(impl_->rule);
  for (std::size_t i = 0; i < impl_->tasks.size(); ++i) {
    const TensorBinding& tensor = impl_->tensors[i];
    if (impl_->tasks[i]->gradient != nullptr && !tensor.step_on_device) *tensor.step += 1.0F;
  }
  return skipped;
}

}  // namespace flashoptim

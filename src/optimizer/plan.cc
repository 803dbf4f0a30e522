#include "flashoptim/plan.h"

#include <stdexcept>
#include <string>
#include <utility>

#include "core/tensor_task.h"
#include "cpu/backend.h"
#include "optimizer/scalars.h"
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
  task.first_group = binding.first_row * core::GroupsPerRow(binding.row_length);
  task.weight_dtype = binding.weight_dtype;
  task.correction_bits = static_cast<std::uint8_t>(binding.correction_bits);
  task.codec = binding.codec;
  task.rule = KernelRuleOf(rule, binding);
  return task;
}

}  // namespace

struct Plan::Impl {
  Rule rule;
  std::vector<TensorBinding> tensors;
  std::vector<Hyperparameters> groups;
  std::vector<core::TensorTask> tasks;
  std::vector<cpu::Chunk> chunks;
  std::vector<std::uint8_t> nonfinite;

  bool AnyPolicyOtherThanPropagate() const {
    for (const Hyperparameters& group : groups) {
      if (group.nonfinite != Nonfinite::kPropagate) return true;
    }
    return false;
  }

  // Applies the policies: throws, or takes the gradients of skipped tensors away.
  std::uint64_t ApplyNonfinitePolicies() {
    cpu::FindNonfinite(tasks, chunks, nonfinite);
    std::uint64_t skipped = 0;
    for (std::size_t i = 0; i < tasks.size(); ++i) {
      if (nonfinite[i] == 0) continue;
      const Nonfinite policy = groups[tensors[i].parameter_group].nonfinite;
      if (policy == Nonfinite::kError) {
        throw std::runtime_error("the gradient of '" + tensors[i].name +
                                 "' holds NaN or an infinity; nothing was updated. Lower the "
                                 "learning rate or clip gradients, or choose nonfinite='skip' or "
                                 "'propagate'");
      }
    }
    for (std::size_t i = 0; i < tasks.size(); ++i) {
      if (nonfinite[i] == 0 || groups[tensors[i].parameter_group].nonfinite != Nonfinite::kSkip) {
        continue;
      }
      tasks[i].gradient = nullptr;
      ++skipped;
    }
    return skipped;
  }

  void PrepareScalars() {
    for (std::size_t i = 0; i < tasks.size(); ++i) {
      core::TensorTask& task = tasks[i];
      if (task.gradient == nullptr) continue;
      const TensorBinding& tensor = tensors[i];
      const Hyperparameters& group = groups[tensor.parameter_group];
      const auto step = static_cast<std::uint64_t>(*tensor.step) + 1;
      task.scalars = MakeScalars(rule, group, step);
      MakeStreamSeeds(group.seed, tensor.stream_key, step, task.stream_seeds);
      task.nesterov = group.nesterov;
      task.stochastic_weight = group.stochastic_rounding;
    }
  }
};

Plan::Plan(Rule rule, std::vector<TensorBinding> tensors, std::uint32_t parameter_groups)
    : impl_(std::make_unique<Impl>()) {
  for (const TensorBinding& tensor : tensors) CheckBinding(rule, tensor, parameter_groups);
  impl_->rule = rule;
  impl_->tensors = std::move(tensors);
  impl_->groups.resize(parameter_groups);
  impl_->tasks.reserve(impl_->tensors.size());
  for (const TensorBinding& tensor : impl_->tensors) impl_->tasks.push_back(MakeTask(rule, tensor));
  impl_->chunks = cpu::MakeChunks(impl_->tasks);
  impl_->nonfinite.resize(impl_->tensors.size());
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
  impl_->tasks[i].gradient = gradient.data;
  impl_->tasks[i].gradient_dtype = gradient.dtype;
}

std::uint64_t Plan::Step(void* /*stream*/) {
  const std::uint64_t skipped =
      impl_->AnyPolicyOtherThanPropagate() ? impl_->ApplyNonfinitePolicies() : 0;
  impl_->PrepareScalars();
  cpu::Step(impl_->tasks, impl_->chunks);
  for (std::size_t i = 0; i < impl_->tasks.size(); ++i) {
    if (impl_->tasks[i].gradient != nullptr) *impl_->tensors[i].step += 1.0F;
  }
  return skipped;
}

}  // namespace flashoptim

#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty_like.h>

#include <algorithm>
#include <stdexcept>
#include <string>
#include <type_traits>

#include "flashoptim/convert.h"
#include "flashoptim/runtime.h"
#include "flashoptim/torch_adapter.h"
#include "plan.h"
#include "tensors.h"

namespace flashoptim {
namespace {

constexpr const char* kCorrection = "weight_correction";

// `decouple_lr` needs the learning rate that a group began with.
void FixInitialLearningRate(Options& options) {
  std::visit(
      [](auto& chosen) {
        if constexpr (requires { chosen.decouple_lr; }) {
          if (chosen.decouple_lr && !chosen.initial_lr) chosen.initial_lr = chosen.lr;
        }
      },
      options);
}

// Weight and correction of a parameter in host memory, in the weight's memory order.
struct HostWeight {
  torch::Tensor weight;
  torch::Tensor correction;  // undefined without one

  WeightStorage storage() const {
    WeightStorage storage{weight.data_ptr(), *StepDType(weight.scalar_type())};
    if (correction.defined()) {
      storage.correction = correction.data_ptr();
      storage.correction_bits = static_cast<std::int32_t>(8 * correction.element_size());
    }
    return storage;
  }
};

}  // namespace

torch::Tensor FlashParamState::tensor(std::string_view name) const {
  for (const auto& [own, tensor] : tensors_) {
    if (own == name) return tensor;
  }
  return {};
}

FlashOptimizer::FlashOptimizer(const std::vector<torch::optim::OptimizerParamGroup>& groups,
                               std::unique_ptr<torch::optim::OptimizerOptions> defaults)
    : torch::optim::Optimizer(std::vector<torch::optim::OptimizerParamGroup>{},
                              std::move(defaults)) {
  for (const torch::optim::OptimizerParamGroup& group : groups) add_param_group(group);
}

FlashOptimizer::~FlashOptimizer() = default;
FlashOptimizer::FlashOptimizer(FlashOptimizer&&) noexcept = default;
FlashOptimizer& FlashOptimizer::operator=(FlashOptimizer&&) noexcept = default;

void FlashOptimizer::add_param_group(const torch::optim::OptimizerParamGroup& group) {
  torch::optim::Optimizer::add_param_group(group);
  const std::size_t index = param_groups_.size() - 1;
  torch::optim::OptimizerParamGroup& added = param_groups_.back();
  try {
    if (group.has_options()) added.set_options(group.options().clone());
    std::vector<ParameterGroup> described;
    for (const Options& options : GroupOptions()) described.push_back({options, {}});
    for (std::size_t i = 0; i < added.params().size(); ++i) {
      const torch::Tensor& parameter = added.params()[i];
      if (!parameter.requires_grad()) continue;
      described[index].parameters.push_back(Describe(parameter, ParameterName(index, i)));
    }
    StateLayout(described);  // throws for what cannot be stepped
  } catch (...) {
    param_groups_.pop_back();
    throw;
  }
}

const std::vector<Options>& FlashOptimizer::GroupOptions() {
  options_.resize(param_groups_.size());
  for (std::size_t g = 0; g < param_groups_.size(); ++g) {
    FlashOptions& own = OptionsOf(param_groups_[g], g);
    options_[g] = own.native();
    FixInitialLearningRate(options_[g]);
    own.set_native(options_[g]);
  }
  return options_;
}

bool FlashOptimizer::Fits(const Plan& plan) const {
  if (plan.options.size() != param_groups_.size()) return false;
  std::size_t next = 0;
  for (std::size_t g = 0; g < param_groups_.size(); ++g) {
    for (const torch::Tensor& parameter : param_groups_[g].params()) {
      const bool known = next < plan.slots.size() && plan.slots[next].group == g &&
                         plan.slots[next].parameter.is_same(parameter);
      if (!known) {
        if (parameter.grad().defined()) return false;
        continue;
      }
      const Slot& slot = plan.slots[next++];
      const auto state = state_.find(parameter.unsafeGetTensorImpl());
      if (state == state_.end() || state->second.get() != slot.state || !slot.Unchanged()) {
        return false;
      }
    }
  }
  return next == plan.slots.size();
}

void FlashOptimizer::Replan(const std::vector<Options>& options, const torch::Tensor& with) {
  plan_ = nullptr;
  plan_ = MakePlan(options, state_, with);
  plan_->GiveStates(state_);
}

bool FlashOptimizer::Has(const torch::Tensor& parameter) const {
  const auto is_it = [&](const torch::Tensor& own) { return own.is_same(parameter); };
  return std::any_of(param_groups_.begin(), param_groups_.end(), [&](const auto& group) {
    return std::any_of(group.params().begin(), group.params().end(), is_it);
  });
}

torch::Tensor FlashOptimizer::step(LossClosure closure) {
  torch::Tensor loss;
  if (closure) {
    const at::AutoGradMode enable_grad(true);
    loss = closure();
  }
  const at::NoGradGuard no_grad;
  const std::vector<Options>& options = GroupOptions();
  if (plan_ == nullptr || !Fits(*plan_)) {
    Replan(options);
  }
  if (plan_->native == nullptr) return loss;
  plan_->FollowOptions(options);
  SetCpuThreads(at::get_num_threads());
  plan_->SetGradients();
  skipped_tensors_ += plan_->Step();
  return loss;
}

torch::Tensor FlashOptimizer::master_weight(const torch::Tensor& parameter) const {
  const torch::Tensor weight = parameter.detach();
  const auto found = state_.find(parameter.unsafeGetTensorImpl());
  const auto* state =
      found == state_.end() ? nullptr : dynamic_cast<const FlashParamState*>(found->second.get());
  if (state == nullptr || !state->tensor(kCorrection).defined()) {
    return weight.to(at::kFloat, /*non_blocking=*/false, /*copy=*/true);
  }
  const HostWeight host{weight.cpu(), state->tensor(kCorrection).cpu()};
  torch::Tensor master = at::empty_like(host.weight, host.weight.options().dtype(at::kFloat));
  JoinMasterWeights(host.storage(), static_cast<std::uint64_t>(master.numel()),
                    master.data_ptr<float>());
  return master.to(parameter.device());
}

void FlashOptimizer::set_master_weight(const torch::Tensor& parameter,
                                       const torch::Tensor& values) {
  if (values.scalar_type() != at::kFloat || values.sizes() != parameter.sizes()) {
    throw std::invalid_argument("master weights are Float of the parameter's shape; these are " +
                                std::string(at::toString(values.scalar_type())) + " of another");
  }
  if (!Has(parameter)) {
    throw std::invalid_argument(
        "the tensor is not a parameter of this optimizer; pass the one "
        "that its groups hold");
  }
  const at::NoGradGuard no_grad;
  if (parameter.requires_grad() && state_.count(parameter.unsafeGetTensorImpl()) == 0) {
    Replan(GroupOptions(), parameter);
  }
  HostWeight host{at::empty_like(parameter, parameter.options().device(at::kCPU)), {}};
  const auto found = state_.find(parameter.unsafeGetTensorImpl());
  torch::Tensor correction;
  if (found != state_.end()) {
    correction = dynamic_cast<const FlashParamState&>(*found->second).tensor(kCorrection);
  }
  if (correction.defined()) {
    host.correction =
        at::empty_like(host.weight, host.weight.options().dtype(correction.scalar_type()));
  }
  const torch::Tensor master =
      at::empty_like(host.weight, host.weight.options().dtype(at::kFloat)).copy_(values);
  SplitMasterWeights(master.const_data_ptr<float>(), static_cast<std::uint64_t>(master.numel()),
                     host.storage());
  parameter.copy_(host.weight);
  if (correction.defined()) correction.copy_(host.correction);
}

MemoryUse FlashOptimizer::memory() const {
  return plan_ != nullptr && plan_->native != nullptr ? plan_->native->Memory() : MemoryUse{};
}

}  // namespace flashoptim

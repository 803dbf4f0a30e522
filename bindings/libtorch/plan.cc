#include "plan.h"

#include <algorithm>
#include <set>
#include <span>
#include <stdexcept>

#include "streams.h"
#include "tensors.h"

namespace flashoptim {
namespace {

constexpr const char* kStreamKey = "stream_key";

// The keys of random streams: a parameter's place among all, unless another has that key from an
// archive.
class StreamKeys {
 public:
  StreamKeys(std::set<std::int64_t> used, std::size_t parameters)
      : used_(std::move(used)), next_(static_cast<std::int64_t>(parameters)) {
    if (!used_.empty()) next_ = std::max(next_, *used_.rbegin() + 1);
  }

  std::int64_t Take(std::size_t place) {
    const auto wanted = static_cast<std::int64_t>(place);
    const std::int64_t key = used_.contains(wanted) ? next_++ : wanted;
    used_.insert(key);
    return key;
  }

 private:
  std::set<std::int64_t> used_;
  std::int64_t next_;
};

std::vector<std::int32_t> GpusOf(std::span<const StateEntry> layout) {
  std::set<std::int32_t> gpus;
  for (const StateEntry& entry : layout) {
    if (entry.device.type == DeviceType::kCuda) gpus.insert(entry.device.index);
  }
  return {gpus.begin(), gpus.end()};
}

// Fresh states of parameters that have none, one for each in the order of the groups.
std::vector<std::unique_ptr<FlashParamState>> FreshStates(const std::vector<ParameterGroup>& groups,
                                                          const std::vector<std::size_t>& places,
                                                          StreamKeys& keys) {
  std::vector<FlashParamState::Tensors> tensors(places.size());
  StateMemory memory;
  const std::vector<StateEntry> layout = StateLayout(groups);
  for (const StateEntry& entry : layout) {
    const torch::Tensor& tensor =
        tensors[entry.parameter].emplace_back(entry.name, Allocate(entry)).second;
    memory.addresses.push_back(tensor.data_ptr());
  }
  // What used the memory before may still run on these streams, and the state is set on others.
  for (const std::int32_t gpu : GpusOf(layout)) WaitForCurrentStream(gpu);
  // An optimizer of these parameters alone knows what a fresh state is.
  const flashoptim::Optimizer sets_the_memory(groups, memory);
  std::vector<std::unique_ptr<FlashParamState>> states;
  for (std::size_t i = 0; i < places.size(); ++i) {
    auto& state = states.emplace_back(std::make_unique<FlashParamState>(std::move(tensors[i])));
    *state->tensor(kStreamKey).data_ptr<std::int64_t>() = keys.Take(places[i]);
  }
  return states;
}

// Adds the addresses of a parameter's state, which must be as the layout says.
void TakeState(const Slot& slot, std::span<const StateEntry> entries, StateMemory& memory) {
  std::string misfit = Misfit(*slot.state, entries);
  for (const StateEntry& entry : entries) {
    const torch::Tensor tensor = slot.state->tensor(entry.name);
    if (misfit.empty() && !LiesAs(tensor, entry)) {
      misfit = "has '" + entry.name + "' on another device or in another memory order";
    }
    if (misfit.empty()) memory.addresses.push_back(tensor.data_ptr());
  }
  if (!misfit.empty()) {
    throw std::invalid_argument(
        slot.name() + ": its state " + misfit +
        "; give the model its dtype and device before the first step, or erase the parameter's "
        "state from the optimizer's state() to start afresh");
  }
}

const FlashParamState& StateOf(const Slot& slot, torch::optim::OptimizerParamState* state) {
  const auto* own = dynamic_cast<const FlashParamState*>(state);
  if (own == nullptr) {
    throw std::invalid_argument(slot.name() +
                                ": its state is not a FlashParamState; erase it from "
                                "the optimizer's state() to start afresh");
  }
  return *own;
}

}  // namespace

std::string Misfit(const FlashParamState& state, std::span<const StateEntry> entries) {
  for (const StateEntry& entry : entries) {
    std::string misfit = Misfit(state.tensor(entry.name), entry);
    if (!misfit.empty()) return misfit;
  }
  return state.tensors().size() == entries.size() ? ""
                                                  : "has more tensors than its options ask for";
}

std::string Slot::name() const { return ParameterName(group, position); }

FlashOptions& OptionsOf(torch::optim::OptimizerParamGroup& group, std::size_t index) {
  auto* options = dynamic_cast<FlashOptions*>(&group.options());
  if (options == nullptr) {
    throw std::invalid_argument("parameter group " + std::to_string(index) +
                                ": its options are of an optimizer of torch::optim; pass those of "
                                "this one, for instance FlashAdamWOptions");
  }
  return *options;
}

bool Slot::Unchanged() const {
  return parameter.const_data_ptr() == seen.const_data_ptr() &&
         parameter.scalar_type() == seen.scalar_type() && parameter.sizes() == seen.sizes() &&
         parameter.strides() == seen.strides() && parameter.device() == seen.device();
}

std::unique_ptr<FlashOptimizer::Plan> FlashOptimizer::MakePlan(const std::vector<Options>& options,
                                                               StateMap& states,
                                                               const torch::Tensor& with) const {
  auto plan = std::make_unique<Plan>();
  plan->options = options;
  std::vector<ParameterGroup> groups;
  std::vector<ParameterGroup> stateless;
  std::vector<std::size_t> places;  // of those without state, among all parameters
  std::set<std::int64_t> keys;
  std::size_t place = 0;
  for (std::size_t g = 0; g < param_groups_.size(); ++g) {
    groups.push_back({options[g], {}});
    stateless.push_back({options[g], {}});
    const std::vector<torch::Tensor>& parameters = param_groups_[g].params();
    for (std::size_t i = 0; i < parameters.size(); ++i, ++place) {
      const torch::Tensor& parameter = parameters[i];
      const auto found = states.find(parameter.unsafeGetTensorImpl());
      const bool gets_state = parameter.grad().defined() || parameter.is_same(with);
      if (found == states.end() && !gets_state) continue;
      Slot& slot = plan->slots.emplace_back(Slot{parameter, parameter.detach(), g, i});
      groups[g].parameters.push_back(Describe(parameter, slot.name()));
      if (found == states.end()) {
        stateless[g].parameters.push_back(groups[g].parameters.back());
        places.push_back(place);
        continue;
      }
      slot.state = &StateOf(slot, found->second.get());
      const torch::Tensor key = slot.state->tensor(kStreamKey);
      if (key.defined()) keys.insert(key.item<std::int64_t>());
    }
  }
  if (plan->slots.empty()) return plan;

  StreamKeys stream_keys(std::move(keys), place);
  auto fresh = FreshStates(stateless, places, stream_keys);
  std::size_t next_fresh = 0;
  for (Slot& slot : plan->slots) {
    if (slot.state != nullptr) continue;
    slot.state = fresh[next_fresh].get();
    plan->fresh.emplace_back(slot.parameter.unsafeGetTensorImpl(), std::move(fresh[next_fresh++]));
  }

  StateMemory memory;
  memory.holds_state = true;
  const std::vector<StateEntry> layout = StateLayout(groups);
  std::span<const StateEntry> rest(layout);
  for (std::size_t i = 0; i < plan->slots.size(); ++i) {
    std::size_t own = 0;
    while (own < rest.size() && rest[own].parameter == i) ++own;
    TakeState(plan->slots[i], rest.first(own), memory);
    rest = rest.subspan(own);
  }
  plan->gpus = GpusOf(layout);
  plan->native = std::make_unique<flashoptim::Optimizer>(std::move(groups), memory);
  return plan;
}

void FlashOptimizer::Plan::GiveStates(StateMap& states) {
  for (auto& [parameter, state] : fresh) states[parameter] = std::move(state);
  fresh.clear();
}

void FlashOptimizer::Plan::FollowOptions(const std::vector<Options>& wanted) {
  for (std::size_t g = 0; g < options.size(); ++g) {
    if (options[g] == wanted[g]) continue;
    native->SetOptions(g, wanted[g]);
    options[g] = wanted[g];
  }
}

void FlashOptimizer::Plan::SetGradients() {
  copies.clear();
  for (std::size_t i = 0; i < slots.size(); ++i) {
    const torch::Tensor& parameter = slots[i].parameter;
    const torch::Tensor* gradient = &parameter.grad();
    if (!gradient->defined()) {
      native->ClearGradient(i);
      continue;
    }
    if (!LiesLike(*gradient, parameter)) {
      gradient = &copies.emplace_back(UsableGradient(*gradient, parameter, slots[i].name()));
    }
    native->SetGradient(i, gradient->const_data_ptr(), *StepDType(gradient->scalar_type()));
  }
}

std::uint64_t FlashOptimizer::Plan::Step() {
  for (const std::int32_t gpu : gpus) native->SetStream(gpu, CurrentStream(gpu));
  const std::uint64_t skipped = native->Step();
  copies.clear();  // the memory is free for what comes later on the same stream
  for (const Slot& slot : slots) {
    if (slot.parameter.grad().defined()) slot.parameter.unsafeGetTensorImpl()->bump_version();
  }
  return skipped;
}

}  // namespace flashoptim

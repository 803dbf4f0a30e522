#include "flashoptim/optimizer.h"

#include <bit>
#include <stdexcept>

#include "flashoptim/convert.h"
#include "flashoptim/runtime.h"
#include "optimizer/optimizer_impl.h"

namespace flashoptim {
namespace {

// The gradient of a tensor without elements: an address that nobody reads.
constexpr float kNoElements = 0.0F;

std::vector<ParameterGroup> OneGroup(const Options& options, std::vector<Parameter>&& parameters) {
  std::vector<ParameterGroup> groups;
  groups.push_back({options, std::move(parameters)});
  return groups;
}

// Adds bytes of a state tensor to the kind that they belong to.
void Count(const StateEntry& tensor, MemoryUse& use) {
  const auto member = [&]() -> std::uint64_t& {
    switch (tensor.kind) {
      case StateKind::kStep:
      case StateKind::kStreamKey:
        return use.other;
      case StateKind::kCorrection:
        return use.weight_correction;
      case StateKind::kFirstMoment:
        return use.first_moment;
      case StateKind::kSecondMoment:
        return use.second_moment;
      case StateKind::kMaximum:
        return use.maximum;
      case StateKind::kFirstScale:
      case StateKind::kSecondScale:
      case StateKind::kMaximumScale:
        break;
    }
    return use.scales;
  };
  member() += tensor.bytes;
}

}  // namespace

Optimizer::Optimizer(std::vector<ParameterGroup> groups, const StateMemory& memory)
    : impl_(std::make_unique<Impl>(std::move(groups), memory)) {}

Optimizer::Optimizer(const Options& options, std::vector<Parameter> parameters)
    : Optimizer(OneGroup(options, std::move(parameters))) {}

Optimizer::~Optimizer() = default;
Optimizer::Optimizer(Optimizer&&) noexcept = default;
Optimizer& Optimizer::operator=(Optimizer&&) noexcept = default;

void Optimizer::SetGradient(std::size_t i, const void* data, DType dtype) {
  Impl::Entry& entry = impl_->entries[impl_->Checked(i)];
  if (entry.layout.elements == 0) {
    entry.gradient = {&kNoElements, dtype};
    return;
  }
  if (data == nullptr) {
    throw std::invalid_argument(Quoted(entry.parameter) +
                                "the gradient has no address; to leave the tensor alone, clear it");
  }
  if (std::bit_cast<std::uintptr_t>(data) % SizeOf(dtype) != 0) {
    throw std::invalid_argument(Quoted(entry.parameter) +
                                "the gradient is not aligned to its element size of " +
                                std::to_string(SizeOf(dtype)) + " bytes");
  }
  entry.gradient = {data, dtype};
}

void Optimizer::SetGradient(std::string_view name, const void* data, DType dtype) {
  const std::optional<std::size_t> i = Find(name);
  if (!i) {
    throw std::invalid_argument("no parameter is named '" + std::string(name) +
                                "'; names are those that the optimizer was made with");
  }
  SetGradient(*i, data, dtype);
}

void Optimizer::ClearGradient(std::size_t i) {
  impl_->entries[impl_->Checked(i)].gradient = Gradient{};
}

void Optimizer::SetGradientScale(float scale) {
  if (impl_->plan) impl_->plan->SetGradientScale(scale);
  impl_->gradient_scale = scale;
}

void Optimizer::SetStream(std::int32_t device_index, void* stream) {
  Impl::Stream* entry = impl_->StreamOf({DeviceType::kCuda, device_index});
  if (entry == nullptr) {
    throw std::invalid_argument("no parameter is on GPU " + std::to_string(device_index) +
                                "; streams are set for the GPUs of the parameters");
  }
  entry->stream = stream;
  if (impl_->plan) impl_->plan->SetStream(device_index, stream);
}

std::uint64_t Optimizer::Step() {
  if (!impl_->plan) impl_->MakePlan();
  for (std::size_t i = 0; i < impl_->entries.size(); ++i) {
    impl_->plan->SetGradient(i, impl_->entries[i].gradient);
  }
  return impl_->plan->Step();
}

std::size_t Optimizer::groups() const { return impl_->setups.size(); }

const Options& Optimizer::options(std::size_t group) const {
  return impl_->options[impl_->CheckedGroup(group)];
}

void Optimizer::SetOptions(std::size_t group, const Options& options) {
  impl_->CheckedGroup(group);
  const auto refuse = [&](const std::string& message) {
    throw std::invalid_argument("parameter group " + std::to_string(group) + ": " + message);
  };
  if (options.index() != impl_->options[group].index()) {
    refuse("the options are of " + NameOf(options) + " and the optimizer is " +
           NameOf(impl_->options[group]) + "; make a new optimizer");
  }
  Options fixed = options;
  FixInitialLearningRate(fixed, impl_->setups[group].hyperparameters.initial_lr);
  GroupSetup setup;
  try {
    setup = SetupOf(fixed, "");
  } catch (const std::invalid_argument& error) {
    refuse(error.what());
  }
  if (!setup.SameState(impl_->setups[group])) {
    refuse(
        "quantize, codec, master_weight_bits, amsgrad, and momentum from or to 0 change the state; "
        "make a new optimizer");
  }
  if (impl_->plan) {
    impl_->plan->SetHyperparameters(static_cast<std::uint32_t>(group), setup.hyperparameters);
  }
  impl_->setups[group] = setup;
  impl_->options[group] = fixed;
}

double Optimizer::lr(std::size_t group) const { return LearningRate(options(group)); }

void Optimizer::SetLr(std::size_t group, double lr) {
  Options changed = options(group);
  SetLearningRate(changed, lr);
  SetOptions(group, changed);
}

std::size_t Optimizer::size() const { return impl_->entries.size(); }

const Parameter& Optimizer::parameter(std::size_t i) const {
  return impl_->entries[impl_->Checked(i)].parameter;
}

std::size_t Optimizer::GroupOf(std::size_t i) const {
  return impl_->entries[impl_->Checked(i)].group;
}

std::optional<std::size_t> Optimizer::Find(std::string_view name) const {
  const auto found = impl_->by_name.find(name);
  if (found == impl_->by_name.end()) return std::nullopt;
  return found->second;
}

Codec Optimizer::codec(std::size_t i) const {
  return impl_->entries[impl_->Checked(i)].layout.codec;
}

std::span<const StateEntry> Optimizer::state() const { return impl_->state; }

std::span<const StateEntry> Optimizer::state(std::size_t i) const {
  return impl_->StateOf(impl_->Checked(i));
}

const StateEntry* Optimizer::FindState(std::size_t i, std::string_view name) const {
  for (const StateEntry& tensor : state(i)) {
    if (tensor.name == name) return &tensor;
  }
  return nullptr;
}

void Optimizer::ReadState(const StateEntry& tensor, void* target) const {
  impl_->CheckOwn(tensor);
  CopyOut(tensor.device, impl_->StreamHandle(tensor.device), target, tensor.data, tensor.bytes);
}

void Optimizer::WriteState(const StateEntry& tensor, const void* source) {
  impl_->CheckOwn(tensor);
  if (tensor.kind == StateKind::kStep) {
    CheckStep(impl_->entries[tensor.parameter].parameter, *static_cast<const float*>(source));
  }
  CopyIn(tensor.device, impl_->StreamHandle(tensor.device), tensor.data, source, tensor.bytes);
  // A plan knows the stream keys and does not read them again.
  if (tensor.kind == StateKind::kStreamKey) impl_->plan.reset();
}

void Optimizer::ReadWeight(std::size_t i, void* target) const {
  const Impl::Entry& entry = impl_->entries[impl_->Checked(i)];
  const Device device = entry.parameter.device;
  CopyOut(device, impl_->StreamHandle(device), target, entry.parameter.data,
          entry.layout.elements * SizeOf(entry.parameter.dtype));
}

void Optimizer::WriteWeight(std::size_t i, const void* source) {
  const Impl::Entry& entry = impl_->entries[impl_->Checked(i)];
  const Device device = entry.parameter.device;
  CopyIn(device, impl_->StreamHandle(device), entry.parameter.data, source,
         entry.layout.elements * SizeOf(entry.parameter.dtype));
}

std::uint64_t Optimizer::StepCount(std::size_t i) const {
  return static_cast<std::uint64_t>(*impl_->StepOf(impl_->Checked(i)));
}

void Optimizer::ReadMasterWeights(std::size_t i, std::span<float> master) const {
  impl_->CheckMaster(i, master.size());
  impl_->ForPieces(i, false,
                   [&](const WeightStorage& piece, std::uint64_t first, std::uint64_t count) {
                     JoinMasterWeights(piece, count, master.data() + first);
                   });
}

void Optimizer::WriteMasterWeights(std::size_t i, std::span<const float> master) {
  impl_->CheckMaster(i, master.size());
  impl_->ForPieces(i, true,
                   [&](const WeightStorage& piece, std::uint64_t first, std::uint64_t count) {
                     SplitMasterWeights(master.data() + first, count, piece);
                   });
}

MemoryUse Optimizer::Memory(std::size_t i) const {
  const Impl::Entry& entry = impl_->entries[impl_->Checked(i)];
  MemoryUse use;
  use.weights = entry.layout.elements * SizeOf(entry.parameter.dtype);
  if (entry.gradient.data != nullptr) {
    use.gradients = entry.layout.elements * SizeOf(entry.gradient.dtype);
  }
  for (const StateEntry& tensor : state(i)) Count(tensor, use);
  return use;
}

MemoryUse Optimizer::Memory() const {
  MemoryUse use;
  for (std::size_t i = 0; i < size(); ++i) use += Memory(i);
  return use;
}

std::vector<std::pair<std::string, std::string>> Optimizer::Metadata() const {
  return {{"flashoptim_format", std::to_string(kFormatVersion)},
          {"flashoptim_version", Version()},
          {"optimizer", NameOf(impl_->options.front())}};
}

}  // namespace flashoptim

#include "optimizer/optimizer_impl.h"

#include <algorithm>
#include <cmath>
#include <stdexcept>
#include <utility>

#include "cuda/backend.h"

namespace flashoptim {
namespace {

// Above it a float counts no more.
constexpr float kLargestStep = 0x1p24F;
// Elements of master weights that are on their way to or from a GPU.
constexpr std::uint64_t kPiece = std::uint64_t{1} << 20;

}  // namespace

std::string Quoted(const Parameter& parameter) { return "tensor '" + parameter.name + "': "; }

void CheckStep(const Parameter& parameter, float step) {
  if (!(step >= 0.0F && step <= kLargestStep) || step != std::floor(step)) {
    throw std::invalid_argument(Quoted(parameter) + "the step count is " + std::to_string(step) +
                                "; it must be a whole number from 0 to 2^24");
  }
}

// Null where there is none.
template <class T>
T* Optimizer::Impl::Address(std::size_t i, StateKind kind) const {
  const std::span own = std::span(state).subspan(entries[i].first_state, entries[i].states);
  const auto found = std::find_if(own.begin(), own.end(),
                                  [kind](const StateEntry& tensor) { return tensor.kind == kind; });
  return found == own.end() ? nullptr : static_cast<T*>(found->data);
}

Optimizer::Impl::Impl(std::vector<ParameterGroup>&& groups, const StateMemory& memory) {
  state = StateLayout(groups);
  setups = SetupsOf(groups);
  Describe(std::move(groups));
  TakeMemory(memory);
  PrepareDevices();
  std::vector<bool> callers(state.size());
  for (std::size_t i = 0; i < state.size(); ++i) callers[i] = state[i].data != nullptr;
  blocks = AllocateMissing(state);
  for (std::size_t i = 0; i < state.size(); ++i) {
    if (memory.holds_state && callers[i]) continue;
    MakeFresh(state[i], entries[state[i].parameter].layout.codec);
  }
  for (std::size_t i = 0; i < entries.size(); ++i) CheckStep(entries[i].parameter, *StepOf(i));
  MakePlan();
}

void Optimizer::Impl::Describe(std::vector<ParameterGroup>&& groups) {
  std::size_t next_state = 0;
  for (std::size_t g = 0; g < groups.size(); ++g) {
    FixInitialLearningRate(groups[g].options, LearningRate(groups[g].options));
    options.push_back(groups[g].options);
    for (Parameter& parameter : groups[g].parameters) {
      Entry& entry = entries.emplace_back();
      entry.layout = LayoutOf(parameter, setups[g]);
      entry.parameter = std::move(parameter);
      entry.parameter.strides = entry.layout.strides;
      entry.group = static_cast<std::uint32_t>(g);
      entry.first_state = next_state;
      const std::size_t index = entries.size() - 1;
      while (next_state < state.size() && state[next_state].parameter == index) ++next_state;
      entry.states = next_state - entry.first_state;
      by_name.emplace(entry.parameter.name, index);
    }
  }
}

// Checks the weights and the memory that the caller brings.
void Optimizer::Impl::TakeMemory(const StateMemory& memory) {
  if (!memory.addresses.empty() && memory.addresses.size() != state.size()) {
    throw std::invalid_argument("the state memory has " + std::to_string(memory.addresses.size()) +
                                " addresses for " + std::to_string(state.size()) +
                                " state tensors; pass one for each entry of StateLayout, or none");
  }
  std::vector<Extent> extents;
  for (const Entry& entry : entries) {
    const Parameter& parameter = entry.parameter;
    const std::size_t size = SizeOf(parameter.dtype);
    extents.push_back({parameter.device, parameter.data, entry.layout.elements * size, size,
                       Quoted(parameter) + "its weight"});
  }
  for (std::size_t i = 0; i < memory.addresses.size(); ++i) {
    StateEntry& tensor = state[i];
    tensor.data = memory.addresses[i];
    if (tensor.data == nullptr) continue;
    extents.push_back({tensor.device, tensor.data, tensor.bytes, tensor.alignment,
                       Quoted(entries[tensor.parameter].parameter) + "its '" + tensor.name + "'"});
  }
  CheckExtents(std::move(extents));
}

void Optimizer::Impl::PrepareDevices() {
  for (const Entry& entry : entries) {
    const Device device = entry.parameter.device;
    if (device.type == DeviceType::kCpu || StreamOf(device) != nullptr) continue;
    if (!cuda::Available()) {
      throw DeviceError(Quoted(entry.parameter) + "it is on GPU " + std::to_string(device.index) +
                        ", and " + cuda::Status() + "; keep it on the CPU");
    }
    streams.push_back({device.index, nullptr});
    cuda::LoadKernels(device.index, setups.front().rule);
  }
}

Optimizer::Impl::Stream* Optimizer::Impl::StreamOf(Device device) {
  if (device.type == DeviceType::kCpu) return nullptr;
  for (Stream& stream : streams) {
    if (stream.device == device.index) return &stream;
  }
  return nullptr;
}

void* Optimizer::Impl::StreamHandle(Device device) {
  const Stream* stream = StreamOf(device);
  return stream == nullptr ? nullptr : stream->stream;
}

std::span<StateEntry> Optimizer::Impl::StateOf(std::size_t i) {
  return std::span(state).subspan(entries[i].first_state, entries[i].states);
}

float* Optimizer::Impl::StepOf(std::size_t i) const { return Address<float>(i, StateKind::kStep); }

TensorBinding Optimizer::Impl::BindingOf(std::size_t i) const {
  const Entry& entry = entries[i];
  TensorBinding binding;
  binding.name = entry.parameter.name;
  binding.device_type = entry.parameter.device.type;
  binding.device_index = entry.parameter.device.index;
  binding.weight = entry.parameter.data;
  binding.weight_dtype = entry.parameter.dtype;
  binding.correction_bits = entry.layout.correction_bits;
  binding.correction = Address<void>(i, StateKind::kCorrection);
  binding.codec = entry.layout.codec;
  binding.first_moment = Address<void>(i, StateKind::kFirstMoment);
  binding.first_moment_scale = Address<float>(i, StateKind::kFirstScale);
  binding.second_moment = Address<void>(i, StateKind::kSecondMoment);
  binding.second_moment_scale = Address<float>(i, StateKind::kSecondScale);
  binding.maximum = Address<void>(i, StateKind::kMaximum);
  binding.maximum_scale = Address<float>(i, StateKind::kMaximumScale);
  binding.rows = entry.layout.geometry.rows;
  binding.row_length = entry.layout.geometry.row_length;
  binding.step = StepOf(i);
  binding.stream_key = static_cast<std::uint64_t>(*Address<std::int64_t>(i, StateKind::kStreamKey));
  binding.parameter_group = entry.group;
  return binding;
}

void Optimizer::Impl::MakePlan() {
  std::vector<TensorBinding> bindings;
  bindings.reserve(entries.size());
  for (std::size_t i = 0; i < entries.size(); ++i) bindings.push_back(BindingOf(i));
  const auto groups = static_cast<std::uint32_t>(setups.size());
  plan.emplace(setups.front().rule, std::move(bindings), groups);
  for (std::uint32_t g = 0; g < groups; ++g) {
    plan->SetHyperparameters(g, setups[g].hyperparameters);
  }
  for (const Stream& stream : streams) plan->SetStream(stream.device, stream.stream);
  plan->SetGradientScale(gradient_scale);
}

void Optimizer::Impl::ForPieces(
    std::size_t i, bool write,
    const std::function<void(const WeightStorage&, std::uint64_t, std::uint64_t)>& body) {
  const Entry& entry = entries[i];
  const Device device = entry.parameter.device;
  WeightStorage storage{entry.parameter.data, entry.parameter.dtype,
                        Address<void>(i, StateKind::kCorrection), entry.layout.correction_bits};
  const std::uint64_t elements = entry.layout.elements;
  if (device.type == DeviceType::kCpu) {
    body(storage, 0, elements);
    return;
  }
  const std::size_t weight_size = SizeOf(storage.dtype);
  const auto correction_size = static_cast<std::size_t>(storage.correction_bits / 8);
  const std::uint64_t piece = std::min(kPiece, elements);
  std::vector<std::byte> weights(piece * weight_size);
  std::vector<std::byte> corrections(piece * correction_size);
  WeightStorage copy = storage;
  copy.weight = weights.data();
  copy.correction = correction_size == 0 ? nullptr : corrections.data();
  void* stream = StreamHandle(device);
  for (std::uint64_t first = 0; first < elements; first += piece) {
    const std::uint64_t count = std::min(piece, elements - first);
    auto* weight = static_cast<std::byte*>(storage.weight) + first * weight_size;
    auto* correction = static_cast<std::byte*>(storage.correction) + first * correction_size;
    if (!write) {
      CopyOut(device, stream, weights.data(), weight, count * weight_size);
      CopyOut(device, stream, corrections.data(), correction, count * correction_size);
    }
    body(copy, first, count);
    if (write) {
      CopyIn(device, stream, weight, weights.data(), count * weight_size);
      CopyIn(device, stream, correction, corrections.data(), count * correction_size);
    }
  }
}

std::size_t Optimizer::Impl::Checked(std::size_t i) const {
  if (i >= entries.size()) {
    throw std::invalid_argument("parameter " + std::to_string(i) + " of " +
                                std::to_string(entries.size()));
  }
  return i;
}

std::size_t Optimizer::Impl::CheckedGroup(std::size_t g) const {
  if (g >= setups.size()) {
    throw std::invalid_argument("parameter group " + std::to_string(g) + " of " +
                                std::to_string(setups.size()));
  }
  return g;
}

void Optimizer::Impl::CheckMaster(std::size_t i, std::size_t count) const {
  const Entry& entry = entries[Checked(i)];
  if (count != entry.layout.elements) {
    throw std::invalid_argument(Quoted(entry.parameter) + std::to_string(count) +
                                " master weights for " + std::to_string(entry.layout.elements) +
                                " elements; pass one float for each");
  }
}

void Optimizer::Impl::CheckOwn(const StateEntry& tensor) const {
  const bool known = tensor.parameter < entries.size() &&
                     std::any_of(state.begin(), state.end(), [&](const StateEntry& own) {
                       return own.data == tensor.data && own.parameter == tensor.parameter &&
                              own.kind == tensor.kind && own.bytes == tensor.bytes;
                     });
  if (!known) {
    throw std::invalid_argument("the state tensor '" + tensor.name +
                                "' is not one of this optimizer; pass an entry of its state()");
  }
}

}  // namespace flashoptim

#include "flashoptim/optimizer_file.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <deque>
#include <numeric>
#include <optional>
#include <utility>
#include <vector>

#include "flashoptim/state_file.h"
#include "optimizer/group_setup.h"

namespace flashoptim {
namespace {

constexpr const char* kRemedy = "; load it into an optimizer made like the one that was saved";

FileDType FileDTypeOf(StateDType dtype) {
  switch (dtype) {
    case StateDType::kInt8:
      return FileDType::kI8;
    case StateDType::kUInt8:
      return FileDType::kU8;
    case StateDType::kInt16:
      return FileDType::kI16;
    case StateDType::kInt64:
      return FileDType::kI64;
    case StateDType::kFloat32:
      break;
  }
  return FileDType::kF32;
}

FileDType FileDTypeOf(DType dtype) {
  if (dtype == DType::kBFloat16) return FileDType::kBF16;
  return dtype == DType::kFloat16 ? FileDType::kF16 : FileDType::kF32;
}

std::vector<std::uint64_t> FileShape(const std::vector<std::int64_t>& shape) {
  return {shape.begin(), shape.end()};
}

// Dimensions from the outermost in memory inwards; empty where they stand so already. Those of one
// element have no place of their own and come last.
std::vector<std::uint32_t> MemoryOrderOf(const Parameter& parameter) {
  std::vector<std::uint32_t> order(parameter.shape.size());
  std::iota(order.begin(), order.end(), 0U);
  const auto counts = [&](std::uint32_t d) { return parameter.shape[d] != 1; };
  std::stable_sort(order.begin(), order.end(), [&](std::uint32_t a, std::uint32_t b) {
    if (counts(a) != counts(b)) return counts(a);
    return counts(a) && parameter.strides[a] > parameter.strides[b];
  });
  std::vector<std::uint32_t> longer;
  std::copy_if(order.begin(), order.end(), std::back_inserter(longer), counts);
  return std::is_sorted(longer.begin(), longer.end()) ? std::vector<std::uint32_t>{} : order;
}

bool HasWeightShape(const StateEntry& entry) {
  switch (entry.kind) {
    case StateKind::kCorrection:
    case StateKind::kFirstMoment:
    case StateKind::kSecondMoment:
    case StateKind::kMaximum:
      return true;
    default:
      return false;
  }
}

// From memory order to the row-major order of a file.
std::vector<std::byte> RowMajor(const std::vector<std::byte>& memory, const Parameter& parameter,
                                std::size_t element) {
  std::vector<std::byte> file(memory.size());
  std::vector<std::int64_t> index(parameter.shape.size(), 0);
  for (std::size_t to = 0; to < file.size(); to += element) {
    const std::int64_t from =
        std::inner_product(index.begin(), index.end(), parameter.strides.begin(), std::int64_t{0});
    std::memcpy(file.data() + to, memory.data() + static_cast<std::size_t>(from) * element,
                element);
    for (std::size_t d = index.size(); d-- > 0;) {
      if (++index[d] < parameter.shape[d]) break;
      index[d] = 0;
    }
  }
  return file;
}

KeptState KeptStateOf(const GroupSetup& setup) {
  KeptState kept;
  kept.codec = setup.codec;
  kept.master_weight_bits = setup.master_weight_bits;
  kept.momentum = !setup.moments.empty();
  kept.amsgrad = setup.moments.size() == 3;
  return kept;
}

StateDescription DescriptionOf(const Optimizer& optimizer) {
  StateDescription description;
  for (std::size_t g = 0; g < optimizer.groups(); ++g) {
    const GroupSetup setup = SetupOf(optimizer.options(g), "");
    description.rule = setup.rule;
    description.groups.push_back({setup.hyperparameters, KeptStateOf(setup), {}});
  }
  for (std::size_t i = 0; i < optimizer.size(); ++i) {
    const Parameter& parameter = optimizer.parameter(i);
    description.groups[optimizer.GroupOf(i)].parameters.push_back(parameter.name);
    std::vector<std::uint32_t> order = MemoryOrderOf(parameter);
    if (!order.empty()) description.memory_order.emplace(parameter.name, std::move(order));
  }
  return description;
}

// One tensor of a file and where it goes.
struct Delivery {
  const FileTensor* tensor;
  const ParameterState* parameter;
  std::size_t index;        // of the optimizer's parameter
  const StateEntry* entry;  // null: the weight
};

class Loader {
 public:
  Loader(Optimizer& optimizer, const CheckpointFile& file) : optimizer_(optimizer), file_(file) {}

  void Load() {
    std::optional<OptimizerState> state = ReadOptimizerState(file_);
    if (!state) {
      Fail("it has no optimizer state (no " + std::string(kOptionsKey) +
           "); save one with SaveOptimizer");
    }
    CheckWhole(*state);
    for (const ParameterState& parameter : state->parameters) Take(parameter);
    CheckValues(*state);
    std::vector<std::byte> storage;
    for (const Delivery& delivery : deliveries_) Write(delivery, storage);
  }

 private:
  [[noreturn]] void Fail(const std::string& message) const {
    throw FileError(file_.path() + ": " + message);
  }

  [[noreturn]] void FailTensor(const std::string& name, const std::string& message) const {
    Fail("tensor '" + name + "': " + message + kRemedy);
  }

  void CheckWhole(const OptimizerState& state) const {
    if (state.description.rule != SetupOf(optimizer_.options(0), "").rule) {
      Fail("its state is of another rule than " + NameOf(optimizer_.options(0)) + kRemedy);
    }
    if (state.parameters.size() != optimizer_.size()) {
      Fail("it has " + std::to_string(state.parameters.size()) + " parameters, and the optimizer " +
           std::to_string(optimizer_.size()) + kRemedy);
    }
  }

  void CheckValues(const OptimizerState& state) const {
    try {
      CheckState(state);
    } catch (const FileError& error) {
      Fail(error.what());
    }
  }

  // Checks everything about one parameter and notes what is to be written.
  void Take(const ParameterState& state) {
    const std::optional<std::size_t> found = optimizer_.Find(state.name);
    if (!found) FailTensor(state.name, "the optimizer has no parameter of this name");
    const Parameter& parameter = optimizer_.parameter(*found);
    if (state.shape != FileShape(parameter.shape)) {
      FailTensor(state.name, "its shape is not that of the optimizer's");
    }
    if (state.order != MemoryOrderOf(parameter)) {
      FailTensor(state.name, "its dimensions lie in another order in memory");
    }
    if (state.weight != nullptr) {
      if (state.weight->dtype != FileDTypeOf(parameter.dtype)) {
        FailTensor(state.name, "its dtype is " + std::string(NameOf(state.weight->dtype)) +
                                   ", and the optimizer's weight is " +
                                   std::string(NameOf(FileDTypeOf(parameter.dtype))));
      }
      deliveries_.push_back({state.weight, &state, *found, nullptr});
    }
    if (state.codec != optimizer_.codec(*found)) {
      FailTensor(state.name, "its moments are kept by another codec");
    }
    std::size_t tensors = 2;  // step and stream_key
    if (state.correction != nullptr) ++tensors;
    for (const MomentTensors& moment : state.moments) tensors += moment.scale != nullptr ? 2 : 1;
    if (tensors != optimizer_.state(*found).size()) {
      FailTensor(state.name, "the file keeps other state tensors for it");
    }
    for (const StateEntry& entry : optimizer_.state(*found)) {
      const FileTensor* tensor = file_.Find(state.name + "." + entry.name);
      if (tensor == nullptr || tensor->dtype != FileDTypeOf(entry.dtype) ||
          tensor->shape != FileShape(entry.shape)) {
        FailTensor(state.name + "." + entry.name, "the file keeps it in another form, or not");
      }
      deliveries_.push_back({tensor, &state, *found, &entry});
    }
  }

  void Write(const Delivery& delivery, std::vector<std::byte>& storage) {
    std::span<const std::byte> bytes = delivery.tensor->data;
    if (delivery.entry == nullptr || HasWeightShape(*delivery.entry)) {
      bytes = InMemoryOrder(*delivery.tensor, *delivery.parameter, storage);
    } else {
      storage.assign(bytes.begin(), bytes.end());
      bytes = storage;
    }
    if (delivery.entry == nullptr) {
      optimizer_.WriteWeight(delivery.index, bytes.data());
    } else {
      optimizer_.WriteState(*delivery.entry, bytes.data());
    }
  }

  Optimizer& optimizer_;
  const CheckpointFile& file_;
  std::vector<Delivery> deliveries_;
};

}  // namespace

void SaveOptimizer(const Optimizer& optimizer, const std::string& path,
                   const WriteOptions& options) {
  std::deque<std::vector<std::byte>> copies;
  std::vector<FileTensor> tensors;
  // What lies in host memory as it will in the file is written from there.
  const auto add = [&](std::string name, FileDType dtype, const std::vector<std::int64_t>& shape,
                       const Device& device, const Parameter* order, const void* data,
                       std::size_t bytes, const auto& read) {
    std::span contents(static_cast<const std::byte*>(data), bytes);
    const bool in_order = order == nullptr || MemoryOrderOf(*order).empty();
    if (device.type != DeviceType::kCpu || !in_order) {
      std::vector<std::byte> copy(bytes);
      read(copy.data());
      if (!in_order) copy = RowMajor(copy, *order, BytesOf(dtype));
      contents = copies.emplace_back(std::move(copy));
    }
    tensors.push_back({std::move(name), dtype, FileShape(shape), contents});
  };
  for (std::size_t i = 0; i < optimizer.size(); ++i) {
    const Parameter& parameter = optimizer.parameter(i);
    add(parameter.name, FileDTypeOf(parameter.dtype), parameter.shape, parameter.device, &parameter,
        parameter.data, optimizer.Memory(i).weights,
        [&](void* target) { optimizer.ReadWeight(i, target); });
    for (const StateEntry& entry : optimizer.state(i)) {
      add(parameter.name + "." + entry.name, FileDTypeOf(entry.dtype), entry.shape, entry.device,
          HasWeightShape(entry) ? &parameter : nullptr, entry.data, entry.bytes,
          [&](void* target) { optimizer.ReadState(entry, target); });
    }
  }
  WriteOptions written = options;
  written.metadata[kOptionsKey] = OptionsToText(DescriptionOf(optimizer));
  WriteCheckpoint(path, tensors, written);
}

void LoadOptimizer(Optimizer& optimizer, const std::string& path, const ReadOptions& options) {
  const CheckpointFile file = CheckpointFile::Open(path, options);
  Loader(optimizer, file).Load();
}

}  // namespace flashoptim

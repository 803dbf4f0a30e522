#include "flashoptim/state_file.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <numeric>
#include <set>
#include <stdexcept>

#include "checkpoint/strict_json.h"
#include "flashoptim/plan.h"

namespace flashoptim {
namespace {

using checkpoint::Quoted;

constexpr const char* kRemedy = "; save the state again with flashoptim";
constexpr const char* kCorrection = "weight_correction";
constexpr const char* kStep = "step";
constexpr const char* kStreamKey = "stream_key";

std::string ScaleOf(const std::string& moment) { return moment + "_scale"; }

struct MomentName {
  const char* name;
  Moment kind;
};

// docs/format.md, section 9.
std::vector<MomentName> MomentsOf(Rule rule, const KeptState& kept) {
  switch (rule) {
    case Rule::kSgd:
      if (kept.momentum) return {{"momentum_buffer", Moment::kFirst}};
      return {};
    case Rule::kLion:
      return {{"exp_avg", Moment::kFirst}};
    case Rule::kAdam:
      break;
  }
  std::vector<MomentName> moments{{"exp_avg", Moment::kFirst}, {"exp_avg_sq", Moment::kSecond}};
  if (kept.amsgrad) moments.push_back({"max_exp_avg_sq", Moment::kSecond});
  return moments;
}

Geometry GeometryInOrder(std::span<const std::uint64_t> shape,
                         std::span<const std::uint32_t> order) {
  std::vector<std::int64_t> sizes(shape.size());
  std::vector<std::int64_t> strides(shape.size());
  std::int64_t stride = 1;
  for (std::size_t i = shape.size(); i-- > 0;) {
    const std::size_t d = order.empty() ? i : order[i];
    if (shape[d] > INT64_MAX ||
        __builtin_mul_overflow(
            stride, std::max<std::int64_t>(1, static_cast<std::int64_t>(shape[d])), &strides[d])) {
      throw std::invalid_argument("more than 2^63 elements");
    }
    sizes[d] = static_cast<std::int64_t>(shape[d]);
    std::swap(stride, strides[d]);
  }
  return GeometryOf(sizes, strides);
}

std::int32_t CorrectionBits(const KeptState& kept, DType weight) {
  if (kept.master_weight_bits != 16 && kept.master_weight_bits != 24 &&
      kept.master_weight_bits != 32) {
    throw std::invalid_argument("master_weight_bits must be 16, 24 or 32, not " +
                                std::to_string(kept.master_weight_bits));
  }
  return weight == DType::kFloat32 ? 0 : kept.master_weight_bits - 16;
}

std::optional<DType> WeightDType(FileDType dtype) {
  if (dtype == FileDType::kBF16) return DType::kBFloat16;
  if (dtype == FileDType::kF16) return DType::kFloat16;
  if (dtype == FileDType::kF32) return DType::kFloat32;
  return std::nullopt;
}

std::string TextOf(std::span<const std::uint64_t> shape) {
  std::string text = "[";
  for (std::size_t i = 0; i < shape.size(); ++i) {
    text += (i == 0 ? "" : ", ") + std::to_string(shape[i]);
  }
  return text + "]";
}

// Gathers the tensors of parameters from one file.
class Collector {
 public:
  Collector(const CheckpointFile& file, const StateDescription& description)
      : file_(file), description_(description) {}

  ParameterState Collect(const std::string& name, std::size_t group) {
    ParameterState state;
    state.name = name;
    state.group = group;
    const KeptState& kept = description_.groups[group].kept;
    const auto moments = MomentsOf(description_.rule, kept);
    state.weight = file_.Find(name);
    const FileTensor* shaped = state.weight != nullptr ? state.weight : Find(name, kCorrection);
    for (const MomentName& moment : moments) {
      if (shaped == nullptr) shaped = Find(name, moment.name);
    }
    if (shaped != nullptr) state.shape = shaped->shape;
    const DType weight = DTypeOf(state);
    const auto order = description_.memory_order.find(name);
    if (order != description_.memory_order.end()) {
      state.order = order->second;
      if (state.order.size() != state.shape.size()) {
        throw FileError(Where(name) + "its memory_order has " + std::to_string(state.order.size()) +
                        " dimensions, and its shape is " + TextOf(state.shape) + kRemedy);
      }
    }
    try {
      state.geometry = GeometryInOrder(state.shape, state.order);
      for (const StateTensor& expected :
           StateTensorsOf(description_.rule, kept, weight, state.shape, state.order)) {
        Check(name, expected);
      }
    } catch (const std::invalid_argument& error) {
      throw FileError(Where(name) + error.what() + kRemedy);
    }
    state.codec = EffectiveCodec(kept.codec, state.shape.size(), state.geometry);
    state.correction = CorrectionBits(kept, weight) != 0 ? Find(name, kCorrection) : nullptr;
    state.step = Find(name, kStep);
    state.stream_key = Find(name, kStreamKey);
    for (const MomentName& moment : moments) {
      state.moments.push_back(
          {moment.kind, Find(name, moment.name), Find(name, ScaleOf(moment.name))});
    }
    return state;
  }

  // A tensor that is named like state, but is of no parameter or superfluous.
  void NothingElse() const {
    static constexpr std::array<const char*, 10> kNames{
        kStep,     kStreamKey,      kCorrection,  "momentum_buffer",  "momentum_buffer_scale",
        "exp_avg", "exp_avg_scale", "exp_avg_sq", "exp_avg_sq_scale", "max_exp_avg_sq"};
    for (const FileTensor& tensor : file_.tensors()) {
      const std::size_t dot = tensor.name.rfind('.');
      if (used_.contains(tensor.name) || dot == std::string::npos) continue;
      const std::string last = tensor.name.substr(dot + 1);
      if (last == "max_exp_avg_sq_scale" ||
          std::find(kNames.begin(), kNames.end(), last) != kNames.end()) {
        throw FileError(file_.path() + ": tensor " + Quoted(tensor.name) +
                        " is named like optimizer state, and its options know of none" + kRemedy);
      }
    }
  }

 private:
  std::string Where(const std::string& name) const {
    return file_.path() + ": tensor " + Quoted(name) + ": ";
  }

  const FileTensor* Find(const std::string& parameter, const std::string& state) const {
    return file_.Find(parameter + "." + state);
  }

  // Without the weight, a correction says that it has 16 bits; which 16 no longer matters.
  DType DTypeOf(const ParameterState& state) const {
    if (state.weight == nullptr) {
      return Find(state.name, kCorrection) != nullptr ? DType::kBFloat16 : DType::kFloat32;
    }
    const auto dtype = WeightDType(state.weight->dtype);
    if (!dtype) {
      throw FileError(Where(state.name) + "a weight cannot be " +
                      std::string(NameOf(state.weight->dtype)) +
                      "; BF16, F16 and F32 can be stepped");
    }
    return *dtype;
  }

  void Check(const std::string& parameter, const StateTensor& expected) {
    const std::string name = parameter + "." + expected.name;
    const FileTensor* tensor = file_.Find(name);
    if (tensor == nullptr) throw FileError(Where(name) + "it is missing" + kRemedy);
    if (tensor->dtype != expected.dtype || tensor->shape != expected.shape) {
      throw FileError(Where(name) + "it is " + std::string(NameOf(tensor->dtype)) + " " +
                      TextOf(tensor->shape) + ", and the options ask for " +
                      std::string(NameOf(expected.dtype)) + " " + TextOf(expected.shape) + kRemedy);
    }
    used_.insert(name);
  }

  const CheckpointFile& file_;
  const StateDescription& description_;
  std::set<std::string> used_;
};

}  // namespace

std::uint64_t StateTensor::bytes() const {
  return std::accumulate(shape.begin(), shape.end(), BytesOf(dtype), std::multiplies<>());
}

std::vector<StateTensor> StateTensorsOf(Rule rule, const KeptState& kept, DType weight,
                                        std::span<const std::uint64_t> shape,
                                        std::span<const std::uint32_t> order) {
  const Geometry geometry = GeometryInOrder(shape, order);
  const Codec codec = EffectiveCodec(kept.codec, shape.size(), geometry);
  const std::vector<std::uint64_t> whole(shape.begin(), shape.end());
  std::vector<StateTensor> tensors{{kStep, FileDType::kF32, {}}, {kStreamKey, FileDType::kI64, {}}};
  const std::int32_t bits = CorrectionBits(kept, weight);
  if (bits != 0) {
    tensors.push_back({kCorrection, bits == 8 ? FileDType::kI8 : FileDType::kI16, whole});
  }
  for (const MomentName& moment : MomentsOf(rule, kept)) {
    if (codec == Codec::kNone) {
      tensors.push_back({moment.name, FileDType::kF32, whole});
      continue;
    }
    tensors.push_back(
        {moment.name, moment.kind == Moment::kFirst ? FileDType::kI8 : FileDType::kU8, whole});
    tensors.push_back(
        {ScaleOf(moment.name), FileDType::kF32, {geometry.rows, geometry.groups_per_row}});
  }
  return tensors;
}

std::optional<OptimizerState> ReadOptimizerState(const CheckpointFile& file) {
  const auto text = file.metadata().find(kOptionsKey);
  if (text == file.metadata().end()) return std::nullopt;
  OptimizerState state;
  try {
    state.description = OptionsFromText(text->second);
    for (const StateGroup& group : state.description.groups) {
      CheckHyperparameters(state.description.rule, group.hyperparameters);
    }
  } catch (const FileError& error) {
    throw FileError(file.path() + ": " + error.what());
  } catch (const std::invalid_argument& error) {
    throw FileError(file.path() + ": " + error.what());
  }
  Collector collector(file, state.description);
  for (std::size_t g = 0; g < state.description.groups.size(); ++g) {
    for (const std::string& name : state.description.groups[g].parameters) {
      state.parameters.push_back(collector.Collect(name, g));
    }
  }
  collector.NothingElse();
  return state;
}

std::span<const std::byte> InMemoryOrder(const FileTensor& tensor, const ParameterState& parameter,
                                         std::vector<std::byte>& storage) {
  const std::uint64_t bytes = BytesOf(tensor.dtype);
  if (parameter.order.empty()) {
    if (reinterpret_cast<std::uintptr_t>(tensor.data.data()) % bytes == 0) return tensor.data;
    storage.assign(tensor.data.begin(), tensor.data.end());
    return storage;
  }
  storage.resize(tensor.data.size());
  const std::size_t dimensions = tensor.shape.size();
  std::vector<std::uint64_t> strides(dimensions);  // in the file
  std::uint64_t stride = bytes;
  for (std::size_t d = dimensions; d-- > 0;) {
    strides[d] = stride;
    stride *= tensor.shape[d];
  }
  std::vector<std::uint64_t> index(dimensions, 0);  // by place in memory
  for (std::size_t to = 0; to < storage.size(); to += bytes) {
    std::uint64_t from = 0;
    for (std::size_t i = 0; i < dimensions; ++i) from += index[i] * strides[parameter.order[i]];
    std::memcpy(storage.data() + to, tensor.data.data() + from, bytes);
    for (std::size_t i = dimensions; i-- > 0;) {
      if (++index[i] < tensor.shape[parameter.order[i]]) break;
      index[i] = 0;
    }
  }
  return storage;
}

}  // namespace flashoptim

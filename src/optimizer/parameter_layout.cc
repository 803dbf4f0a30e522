#include "optimizer/parameter_layout.h"

#include <algorithm>
#include <limits>
#include <set>
#include <stdexcept>
#include <string>
#include <string_view>

#include "optimizer/validate.h"

namespace flashoptim {
namespace {

// As many as torch allows; no tensor of a model comes near.
constexpr std::size_t kMaximalDimensions = 64;
// Of a state tensor of four bytes per element the size must be a number of bytes.
constexpr std::int64_t kMaximalElements = std::numeric_limits<std::int64_t>::max() / 8;

[[noreturn]] void Fail(const Parameter& parameter, const std::string& message) {
  throw std::invalid_argument("tensor '" + parameter.name + "': " + message);
}

// The product of the sizes, where a size of 0 counts as 1, so that strides are numbers too.
std::int64_t CheckedProduct(const Parameter& parameter) {
  std::int64_t product = 1;
  for (const std::int64_t size : parameter.shape) {
    if (size < 0) {
      Fail(parameter, "a dimension has the size " + std::to_string(size) + "; sizes are 0 or more");
    }
    const std::int64_t factor = std::max<std::int64_t>(size, 1);
    if (product > kMaximalElements / factor) {
      Fail(parameter, "its shape has more than " + std::to_string(kMaximalElements) +
                          " elements; check the sizes");
    }
    product *= factor;
  }
  return product;
}

std::vector<std::int64_t> RowMajor(std::span<const std::int64_t> shape) {
  std::vector<std::int64_t> strides(shape.size());
  std::int64_t stride = 1;
  for (std::size_t d = shape.size(); d-- > 0;) {
    strides[d] = stride;
    stride *= std::max<std::int64_t>(shape[d], 1);
  }
  return strides;
}

void CheckDevice(const Parameter& parameter) {
  const Device device = parameter.device;
  if (device.index < 0) {
    Fail(parameter, "the device index is " + std::to_string(device.index) + "; GPUs count from 0");
  }
  if (device.type == DeviceType::kCpu && device.index != 0) {
    Fail(parameter,
         "the device index is " + std::to_string(device.index) + "; on the CPU it must be 0");
  }
}

StateEntry HostNumber(const char* name, StateKind kind, StateDType dtype) {
  StateEntry tensor;
  tensor.name = name;
  tensor.kind = kind;
  tensor.dtype = dtype;
  tensor.bytes = SizeOf(dtype);
  tensor.alignment = SizeOf(dtype);
  return tensor;
}

}  // namespace

ParameterLayout LayoutOf(const Parameter& parameter, const GroupSetup& setup) {
  if (parameter.shape.size() > kMaximalDimensions) {
    Fail(parameter, "it has " + std::to_string(parameter.shape.size()) +
                        " dimensions; at most 64 can be described");
  }
  CheckDevice(parameter);
  CheckedProduct(parameter);
  ParameterLayout layout;
  layout.strides = parameter.strides;
  if (layout.strides.empty()) layout.strides = RowMajor(parameter.shape);
  layout.geometry =
      GeometryOfNamed("tensor '" + parameter.name + "': ", parameter.shape, layout.strides);
  layout.elements = layout.geometry.rows * layout.geometry.row_length;
  layout.codec = EffectiveCodec(setup.codec, parameter.shape.size(), layout.geometry);
  layout.correction_bits = parameter.dtype == DType::kFloat32 ? 0 : setup.master_weight_bits - 16;
  return layout;
}

void AppendState(const Parameter& parameter, const ParameterLayout& layout, const GroupSetup& setup,
                 std::size_t index, std::vector<StateEntry>& state) {
  const std::size_t first = state.size();
  const auto add = [&](std::string name, StateKind kind, StateDType dtype) -> StateEntry& {
    StateEntry tensor;
    tensor.name = std::move(name);
    tensor.kind = kind;
    tensor.dtype = dtype;
    tensor.shape = parameter.shape;
    tensor.strides = layout.strides;
    tensor.device = parameter.device;
    tensor.alignment = SizeOf(dtype);
    tensor.bytes = layout.elements * SizeOf(dtype);
    return state.emplace_back(std::move(tensor));
  };
  state.push_back(HostNumber("step", StateKind::kStep, StateDType::kFloat32));
  state.push_back(HostNumber("stream_key", StateKind::kStreamKey, StateDType::kInt64));
  if (layout.correction_bits != 0) {
    add("weight_correction", StateKind::kCorrection,
        layout.correction_bits == 8 ? StateDType::kInt8 : StateDType::kInt16);
  }
  for (const MomentSpec& moment : setup.moments) {
    if (layout.codec == Codec::kNone) {
      add(moment.name, moment.kind, StateDType::kFloat32);
      continue;
    }
    add(moment.name, moment.kind,
        moment.kind == StateKind::kFirstMoment ? StateDType::kInt8 : StateDType::kUInt8);
    StateEntry& scale =
        add(std::string(moment.name) + "_scale", moment.scale_kind, StateDType::kFloat32);
    scale.shape = {static_cast<std::int64_t>(layout.geometry.rows),
                   static_cast<std::int64_t>(layout.geometry.groups_per_row)};
    scale.strides = RowMajor(scale.shape);
    scale.bytes = layout.geometry.rows * layout.geometry.groups_per_row * sizeof(float);
  }
  for (std::size_t i = first; i < state.size(); ++i) state[i].parameter = index;
}

std::vector<GroupSetup> SetupsOf(std::span<const ParameterGroup> groups) {
  if (groups.empty()) {
    throw std::invalid_argument("an optimizer needs at least one parameter group");
  }
  std::vector<GroupSetup> setups;
  for (std::size_t g = 0; g < groups.size(); ++g) {
    const std::string group = "parameter group " + std::to_string(g) + ": ";
    if (groups[g].options.index() != groups[0].options.index()) {
      throw std::invalid_argument(group + "its options are of " + NameOf(groups[g].options) +
                                  " and those of group 0 of " + NameOf(groups[0].options) +
                                  "; make one optimizer for each rule");
    }
    setups.push_back(SetupOf(groups[g].options, group));
  }
  return setups;
}

std::vector<StateEntry> StateLayout(std::span<const ParameterGroup> groups) {
  const std::vector<GroupSetup> setups = SetupsOf(groups);
  std::vector<StateEntry> state;
  std::set<std::string_view> names;
  std::size_t index = 0;
  for (std::size_t g = 0; g < groups.size(); ++g) {
    for (const Parameter& parameter : groups[g].parameters) {
      if (parameter.name.empty()) {
        Fail(parameter, "parameter " + std::to_string(index) +
                            " has no name; give each tensor a name of its own");
      }
      if (!names.insert(parameter.name).second) {
        Fail(parameter, "two tensors have this name; give each a name of its own");
      }
      AppendState(parameter, LayoutOf(parameter, setups[g]), setups[g], index++, state);
    }
  }
  return state;
}

std::size_t SizeOf(StateDType dtype) {
  switch (dtype) {
    case StateDType::kInt8:
    case StateDType::kUInt8:
      return 1;
    case StateDType::kInt16:
      return 2;
    case StateDType::kInt64:
      return 8;
    case StateDType::kFloat32:
      break;
  }
  return 4;
}

std::size_t SizeOf(DType dtype) { return dtype == DType::kFloat32 ? 4 : 2; }

std::uint64_t MemoryUse::Optimizer() const {
  return weight_correction + first_moment + second_moment + maximum + scales + other;
}

std::uint64_t MemoryUse::Total() const { return weights + gradients + Optimizer(); }

MemoryUse& MemoryUse::operator+=(const MemoryUse& other_use) {
  weights += other_use.weights;
  gradients += other_use.gradients;
  weight_correction += other_use.weight_correction;
  first_moment += other_use.first_moment;
  second_moment += other_use.second_moment;
  maximum += other_use.maximum;
  scales += other_use.scales;
  other += other_use.other;
  return *this;
}

}  // namespace flashoptim

#include "capi/translate.h"

#include <initializer_list>
#include <stdexcept>
#include <string>

namespace flashoptim::capi {
namespace {

// As many as a tensor may have; more is a stray number, and the sizes are not read.
constexpr std::size_t kMaximalDimensions = 64;

std::int32_t Code(const char* name, std::int32_t code, std::int32_t count) {
  if (code < 0 || code >= count) {
    throw std::invalid_argument(std::string(name) + " is " + std::to_string(code) +
                                "; flashoptim.h has the codes 0 to " + std::to_string(count - 1));
  }
  return code;
}

bool Switch(const char* name, std::uint8_t value) {
  if (value > 1) {
    throw std::invalid_argument(std::string(name) + " must be 0 or 1, not " +
                                std::to_string(value));
  }
  return value == 1;
}

void CheckReserved(std::initializer_list<std::int32_t> values) {
  for (const std::int32_t value : values) {
    if (value != 0) {
      throw std::invalid_argument("a reserved member is " + std::to_string(value) +
                                  "; start from the initialiser of the struct");
    }
  }
}

template <class T>
concept HasBetas = requires(T options) {
  options.beta1;
};
template <class T>
concept HasMomentum = requires(T options) {
  options.momentum;
};
template <class T>
concept HasEps = requires(T options) {
  options.eps;
};
template <class T>
concept HasDecoupledDecay = requires(T options) {
  options.decouple_lr;
};

template <class T>
void Read(const flashoptim_options& c, T& options) {
  options.lr = c.lr;
  if (!(c.initial_lr < 0.0)) options.initial_lr = c.initial_lr;
  options.weight_decay = c.weight_decay;
  options.maximize = Switch("maximize", c.maximize);
  if constexpr (HasBetas<T>) {
    options.beta1 = c.beta1;
    options.beta2 = c.beta2;
  }
  if constexpr (HasEps<T>) {
    options.eps = c.eps;
    options.amsgrad = Switch("amsgrad", c.amsgrad);
  }
  if constexpr (HasMomentum<T>) {
    options.momentum = c.momentum;
    options.dampening = c.dampening;
    options.nesterov = Switch("nesterov", c.nesterov);
  }
  if constexpr (HasDecoupledDecay<T>) {
    options.decouple_lr = Switch("decouple_lr", c.decouple_lr);
  }
  StorageOptions& storage = options.storage;
  storage.quantize = Switch("quantize", c.quantize);
  storage.codec = static_cast<Codec>(Code("codec", c.codec, 3));
  storage.master_weight_bits = c.master_weight_bits;
  storage.stochastic_rounding = Switch("stochastic_rounding", c.stochastic_rounding);
  storage.nonfinite = static_cast<Nonfinite>(Code("nonfinite", c.nonfinite, 3));
  storage.seed = c.seed;
}

template <class T>
void Write(const T& options, flashoptim_options& c) {
  c.lr = options.lr;
  c.initial_lr = options.initial_lr.value_or(-1.0);
  c.beta1 = 0.9;
  c.beta2 = 0.999;
  c.eps = 1e-8;
  c.weight_decay = options.weight_decay;
  c.maximize = options.maximize;
  if constexpr (HasBetas<T>) {
    c.beta1 = options.beta1;
    c.beta2 = options.beta2;
  }
  if constexpr (HasEps<T>) {
    c.eps = options.eps;
    c.amsgrad = options.amsgrad;
  }
  if constexpr (HasMomentum<T>) {
    c.momentum = options.momentum;
    c.dampening = options.dampening;
    c.nesterov = options.nesterov;
  }
  if constexpr (HasDecoupledDecay<T>) {
    c.decouple_lr = options.decouple_lr;
  }
  const StorageOptions& storage = options.storage;
  c.quantize = storage.quantize;
  c.codec = static_cast<std::int32_t>(storage.codec);
  c.master_weight_bits = storage.master_weight_bits;
  c.stochastic_rounding = storage.stochastic_rounding;
  c.nonfinite = static_cast<std::int32_t>(storage.nonfinite);
  c.seed = storage.seed;
}

std::int32_t CodeOf(StateDType dtype) {
  switch (dtype) {
    case StateDType::kInt8:
      return FLASHOPTIM_INT8;
    case StateDType::kUInt8:
      return FLASHOPTIM_UINT8;
    case StateDType::kInt16:
      return FLASHOPTIM_INT16;
    case StateDType::kInt64:
      return FLASHOPTIM_INT64;
    case StateDType::kFloat32:
      break;
  }
  return FLASHOPTIM_FLOAT32;
}

}  // namespace

DType DTypeOf(std::int32_t code) { return static_cast<DType>(Code("dtype", code, 3)); }

Options DefaultsOf(std::int32_t optimizer) {
  switch (Code("optimizer", optimizer, 5)) {
    case FLASHOPTIM_SGD:
      return SgdOptions{};
    case FLASHOPTIM_SGDW:
      return SgdwOptions{};
    case FLASHOPTIM_ADAM:
      return AdamOptions{};
    case FLASHOPTIM_ADAMW:
      return AdamWOptions{};
    default:
      return LionOptions{};
  }
}

Options OptionsOf(const flashoptim_options& options) {
  CheckReserved({options.reserved[0], options.reserved[1]});
  Options result = DefaultsOf(options.optimizer);
  std::visit([&](auto& chosen) { Read(options, chosen); }, result);
  return result;
}

Parameter ParameterOf(const flashoptim_tensor& tensor) {
  CheckReserved({tensor.reserved});
  if (tensor.name == nullptr) {
    throw std::invalid_argument("a tensor has no name; give each tensor a name of its own");
  }
  const std::string whose = "tensor '" + std::string(tensor.name) + "': ";
  if (tensor.dimensions > kMaximalDimensions) {
    throw std::invalid_argument(whose + "it has " + std::to_string(tensor.dimensions) +
                                " dimensions; at most 64 can be described");
  }
  if (tensor.dimensions != 0 && tensor.shape == nullptr) {
    throw std::invalid_argument(whose + "its shape is null; pass its sizes");
  }
  Parameter parameter;
  parameter.name = tensor.name;
  parameter.data = tensor.data;
  parameter.dtype = static_cast<DType>(Code((whose + "its dtype").c_str(), tensor.dtype, 3));
  if (tensor.dimensions != 0) {
    parameter.shape.assign(tensor.shape, tensor.shape + tensor.dimensions);
    if (tensor.strides != nullptr) {
      parameter.strides.assign(tensor.strides, tensor.strides + tensor.dimensions);
    }
  }
  parameter.device.type =
      static_cast<DeviceType>(Code((whose + "its device_type").c_str(), tensor.device_type, 2));
  parameter.device.index = tensor.device_index;
  return parameter;
}

WriteOptions WriteOptionsOf(const flashoptim_save_options& options) {
  CheckReserved({options.reserved});
  WriteOptions result;
  result.shard_bytes = options.shard_bytes;
  result.zstd_level = options.zstd_level;
  return result;
}

void Fill(const Parameter& parameter, flashoptim_tensor& target) {
  target.name = parameter.name.c_str();
  target.data = parameter.data;
  target.shape = parameter.shape.data();
  target.strides = parameter.strides.data();
  target.dimensions = parameter.shape.size();
  target.dtype = static_cast<std::int32_t>(parameter.dtype);
  target.device_type = static_cast<std::int32_t>(parameter.device.type);
  target.device_index = parameter.device.index;
  target.reserved = 0;
}

void Fill(const Options& options, flashoptim_options& target) {
  const std::size_t size = target.struct_size;
  target = flashoptim_options{};
  target.struct_size = size;
  target.optimizer = static_cast<std::int32_t>(options.index());
  std::visit([&](const auto& chosen) { Write(chosen, target); }, options);
}

void Fill(const StateEntry& tensor, flashoptim_state_tensor& target) {
  target.parameter = tensor.parameter;
  target.name = tensor.name.c_str();
  target.data = tensor.data;
  target.shape = tensor.shape.data();
  target.strides = tensor.strides.data();
  target.dimensions = tensor.shape.size();
  target.bytes = tensor.bytes;
  target.alignment = tensor.alignment;
  target.dtype = CodeOf(tensor.dtype);
  target.device_type = static_cast<std::int32_t>(tensor.device.type);
  target.device_index = tensor.device.index;
  target.reserved = 0;
}

void Fill(const MemoryUse& use, flashoptim_memory& target) {
  target.weights = use.weights;
  target.gradients = use.gradients;
  target.weight_correction = use.weight_correction;
  target.first_moment = use.first_moment;
  target.second_moment = use.second_moment;
  target.maximum = use.maximum;
  target.scales = use.scales;
  target.other = use.other;
}

}  // namespace flashoptim::capi

// Descriptions of options and tensors through the C interface. Whatever they say, a call succeeds
// or is refused with a message; a layout adds up; and an optimizer whose weights lie in the arena
// below can be stepped.
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <deque>
#include <string>
#include <vector>

#include "flashoptim/flashoptim.h"

namespace {

constexpr std::size_t kArena = std::size_t{1} << 14;
alignas(64) std::array<std::byte, kArena> arena;
const std::array<float, kArena> gradient{};

void Require(bool condition) {
  if (!condition) __builtin_trap();
}

// Takes values from the input; zeros behind its end.
class Input {
 public:
  Input(const std::uint8_t* data, std::size_t size) : data_(data), size_(size) {}

  template <class T>
  T Take() {
    T value{};
    const std::size_t count = std::min(sizeof(T), size_);
    std::memcpy(&value, data_, count);
    data_ += count;
    size_ -= count;
    return value;
  }

  // A small number in most cases, any in some.
  std::int64_t Number() {
    const auto kind = Take<std::uint8_t>();
    return kind == 255 ? Take<std::int64_t>() : static_cast<std::int64_t>(kind) - 2;
  }

  bool empty() const { return size_ == 0; }

 private:
  const std::uint8_t* data_;
  std::size_t size_;
};

struct Described {
  std::string name;
  std::vector<std::int64_t> shape;
  std::vector<std::int64_t> strides;
  flashoptim_tensor tensor = FLASHOPTIM_TENSOR_INIT;
};

void Describe(Input& input, Described& described) {
  const auto flags = input.Take<std::uint8_t>();
  described.name = std::string(1, static_cast<char>(input.Take<std::uint8_t>()));
  const std::size_t dimensions = input.Take<std::uint8_t>() % 8;
  for (std::size_t d = 0; d < dimensions; ++d) described.shape.push_back(input.Number());
  flashoptim_tensor& tensor = described.tensor;
  tensor.name = described.name.c_str();
  tensor.shape = described.shape.data();
  tensor.dimensions = dimensions;
  tensor.dtype = input.Take<std::int8_t>();
  tensor.data = arena.data() + input.Take<std::uint16_t>() % kArena;
  if ((flags & 1U) != 0) {
    for (std::size_t d = 0; d < dimensions; ++d) described.strides.push_back(input.Number());
    tensor.strides = described.strides.data();
  }
  if ((flags & 2U) != 0) tensor.device_type = input.Take<std::int8_t>();
  if ((flags & 4U) != 0) tensor.device_index = static_cast<std::int32_t>(input.Number());
  if ((flags & 8U) != 0) tensor.struct_size = static_cast<std::size_t>(input.Number());
  if ((flags & 16U) != 0) tensor.data = nullptr;
  if ((flags & 32U) != 0) tensor.name = nullptr;
  if ((flags & 64U) != 0) tensor.shape = nullptr;
  if ((flags & 128U) != 0) {
    tensor.dimensions = 65 + static_cast<std::size_t>(input.Take<std::uint32_t>());
  }
}

flashoptim_options DescribeOptions(Input& input) {
  flashoptim_options options;
  const auto optimizer = static_cast<std::int32_t>(input.Take<std::uint8_t>() % 5);
  Require(flashoptim_options_init(&options, sizeof(options), optimizer) == FLASHOPTIM_OK);
  const auto flags = input.Take<std::uint8_t>();
  if ((flags & 1U) != 0) options.codec = input.Take<std::int8_t>();
  if ((flags & 2U) != 0) options.master_weight_bits = input.Take<std::uint8_t>();
  if ((flags & 4U) != 0) options.nonfinite = input.Take<std::int8_t>();
  if ((flags & 8U) != 0) options.lr = input.Take<double>();
  if ((flags & 16U) != 0) options.momentum = input.Take<double>();
  if ((flags & 32U) != 0) options.beta2 = input.Take<double>();
  if ((flags & 64U) != 0) options.amsgrad = input.Take<std::uint8_t>();
  if ((flags & 128U) != 0) options.stochastic_rounding = input.Take<std::uint8_t>();
  return options;
}

std::uint64_t ElementsOf(const Described& described) {
  std::uint64_t elements = 1;
  for (const std::int64_t size : described.shape) elements *= static_cast<std::uint64_t>(size);
  return elements;
}

bool LiesInArena(const Described& described) {
  const std::size_t size = described.tensor.dtype == FLASHOPTIM_FLOAT32 ? 4 : 2;
  const std::uint64_t elements = ElementsOf(described);
  if (elements == 0) return true;
  const auto* data = static_cast<const std::byte*>(described.tensor.data);
  return data != nullptr && described.tensor.device_type == FLASHOPTIM_CPU && elements <= kArena &&
         static_cast<std::size_t>(data - arena.data()) + elements * size <= kArena;
}

// The state has as many bytes as its shapes say.
void CheckLayout(flashoptim_builder* builder) {
  std::size_t count = 0;
  if (flashoptim_builder_state_count(builder, &count) != FLASHOPTIM_OK) return;
  for (std::size_t i = 0; i < count; ++i) {
    flashoptim_state_tensor state = FLASHOPTIM_STATE_TENSOR_INIT;
    Require(flashoptim_builder_state(builder, i, &state) == FLASHOPTIM_OK);
    std::uint64_t bytes = state.alignment;
    for (std::size_t d = 0; d < state.dimensions; ++d) {
      Require(state.shape[d] >= 0);
      bytes *= static_cast<std::uint64_t>(state.shape[d]);
    }
    Require(bytes == state.bytes);
  }
}

void StepTwice(flashoptim_builder* builder, const std::deque<Described>& tensors) {
  flashoptim_optimizer* optimizer = nullptr;
  if (flashoptim_optimizer_create(builder, &optimizer) != FLASHOPTIM_OK) return;
  std::size_t count = 0;
  Require(flashoptim_parameter_count(optimizer, &count) == FLASHOPTIM_OK);
  Require(count == tensors.size());
  for (std::size_t i = 0; i < count; ++i) {
    Require(flashoptim_set_gradient(optimizer, i, gradient.data(), FLASHOPTIM_FLOAT32) ==
            FLASHOPTIM_OK);
  }
  for (int step = 0; step < 2; ++step) {
    Require(flashoptim_step(optimizer, nullptr) == FLASHOPTIM_OK);
  }
  flashoptim_optimizer_destroy(optimizer);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const bool one_thread = flashoptim_set_cpu_threads(1) == FLASHOPTIM_OK;
  Require(one_thread);
  arena.fill(std::byte{0});
  Input input(data, size);
  flashoptim_builder* builder = nullptr;
  Require(flashoptim_builder_create(&builder) == FLASHOPTIM_OK);
  const flashoptim_options options = DescribeOptions(input);
  if (flashoptim_builder_add_group(builder, &options, nullptr) == FLASHOPTIM_OK) {
    std::deque<Described> tensors;
    bool small = true;
    while (!input.empty() && tensors.size() < 4) {
      Described& described = tensors.emplace_back();
      Describe(input, described);
      const flashoptim_status status = flashoptim_builder_add_tensor(builder, 0, &described.tensor);
      Require(status == FLASHOPTIM_OK || status == FLASHOPTIM_INVALID_ARGUMENT);
      if (status == FLASHOPTIM_OK) {
        small = small && LiesInArena(described);
      } else {
        Require(std::strlen(flashoptim_last_error()) > 10);
        tensors.pop_back();
      }
    }
    CheckLayout(builder);
    if (small) StepTwice(builder, tensors);
  }
  flashoptim_builder_destroy(builder);
  return 0;
}

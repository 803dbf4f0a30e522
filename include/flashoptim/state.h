// What an optimizer keeps for its parameters: descriptions of parameters and of state tensors.
#ifndef FLASHOPTIM_STATE_H_
#define FLASHOPTIM_STATE_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "flashoptim/options.h"
#include "flashoptim/types.h"

namespace flashoptim {

/// Where a tensor lies. `index` counts GPUs and is 0 on the CPU.
struct Device {
  DeviceType type = DeviceType::kCpu;
  std::int32_t index = 0;
  friend bool operator==(const Device&, const Device&) = default;
};

/// A weight that an optimizer steps. Its memory stays the caller's and must outlive the optimizer.
struct Parameter {
  std::string name;      ///< not empty, unique within an optimizer: errors and files use it
  void* data = nullptr;  ///< aligned to the element size; may be null without elements
  DType dtype = DType::kFloat32;
  std::vector<std::int64_t> shape;
  std::vector<std::int64_t> strides{};  ///< in elements; empty: row-major. Must be dense.
  Device device{};
};

/// Parameters that share their options.
struct ParameterGroup {
  Options options;
  std::vector<Parameter> parameters;
};

/// Element type of a state tensor.
enum class StateDType : std::uint8_t {
  kInt8 = 0,
  kUInt8 = 1,
  kInt16 = 2,
  kInt64 = 3,
  kFloat32 = 4,
};

/// Bytes of one element.
std::size_t SizeOf(StateDType dtype);
std::size_t SizeOf(DType dtype);

/// What a state tensor is for.
enum class StateKind : std::uint8_t {
  kStep = 0,
  kStreamKey = 1,
  kCorrection = 2,
  kFirstMoment = 3,
  kSecondMoment = 4,
  kMaximum = 5,
  kFirstScale = 6,
  kSecondScale = 7,
  kMaximumScale = 8,
};

/// The alignment at which every path of every backend is fast. Less, down to the size of an
/// element, gives the same bits.
inline constexpr std::size_t kFastAlignment = 64;

/// One tensor of a parameter's state (docs/format.md, section 9), as the Python package has it.
struct StateEntry {
  std::size_t parameter = 0;  ///< index among all parameters, in the order of the groups
  std::string name;           ///< "step", "exp_avg", "exp_avg_scale", ...
  StateKind kind = StateKind::kStep;
  StateDType dtype = StateDType::kFloat32;
  std::vector<std::int64_t> shape;
  std::vector<std::int64_t> strides;  ///< in elements: the weight's memory order, or row-major
  Device device{};                    ///< the weight's; the CPU for "step" and "stream_key"
  std::size_t bytes = 0;
  std::size_t alignment = 1;  ///< the least that `data` must have, the size of an element
  void* data = nullptr;       ///< null in a layout
};

/// The state tensors that an optimizer of these groups will keep, in its order: those of one
/// parameter after those of the other, each beginning with "step" and "stream_key". `data` is null.
/// Looks at descriptions only, at no memory and no device. Throws std::invalid_argument, naming the
/// tensor, if a description or an option is not valid.
std::vector<StateEntry> StateLayout(std::span<const ParameterGroup> groups);

/// Bytes by what they are for.
struct MemoryUse {
  std::uint64_t weights = 0;
  std::uint64_t gradients = 0;  ///< of those that are set
  std::uint64_t weight_correction = 0;
  std::uint64_t first_moment = 0;
  std::uint64_t second_moment = 0;
  std::uint64_t maximum = 0;  ///< amsgrad's
  std::uint64_t scales = 0;
  std::uint64_t other = 0;  ///< step counts and stream keys

  /// What the optimizer keeps: all but weights and gradients.
  std::uint64_t Optimizer() const;
  std::uint64_t Total() const;
  MemoryUse& operator+=(const MemoryUse& other_use);
};

}  // namespace flashoptim

#endif  // FLASHOPTIM_STATE_H_

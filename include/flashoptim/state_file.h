// Optimizer state in checkpoint files: what is kept for a parameter, under which names, and with
// which options (docs/format.md, sections 9 and 11).
#ifndef FLASHOPTIM_STATE_FILE_H_
#define FLASHOPTIM_STATE_FILE_H_

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "flashoptim/checkpoint.h"
#include "flashoptim/convert.h"
#include "flashoptim/hyperparameters.h"
#include "flashoptim/layout.h"
#include "flashoptim/types.h"

namespace flashoptim {

/// What decides which state is kept, beside the rule.
struct KeptState {
  Codec codec = Codec::kRoot;
  std::int32_t master_weight_bits = 24;  ///< 16, 24 or 32; of 16-bit weights
  bool momentum = true;                  ///< SGD
  bool amsgrad = false;                  ///< Adam
};

/// One tensor of a parameter's state. `name` is the format's, for instance "exp_avg_scale".
struct StateTensor {
  std::string name;
  FileDType dtype;
  std::vector<std::uint64_t> shape;

  std::uint64_t bytes() const;
};

/// All state tensors of a parameter of this shape. `order` lists its dimensions from the outermost
/// in memory inwards; empty: as they stand. Throws std::invalid_argument for a wrong order, a wrong
/// number of bits, or more elements than 2^63.
std::vector<StateTensor> StateTensorsOf(Rule rule, const KeptState& kept, DType weight,
                                        std::span<const std::uint64_t> shape,
                                        std::span<const std::uint32_t> order = {});

/// One parameter group of a file.
struct StateGroup {
  Hyperparameters hyperparameters;
  KeptState kept;
  std::vector<std::string> parameters;
};

/// Everything about an optimizer's state but its tensors.
struct StateDescription {
  Rule rule = Rule::kAdam;
  std::vector<StateGroup> groups;
  /// Of parameters whose memory order is not that of their dimensions.
  std::map<std::string, std::vector<std::uint32_t>> memory_order;
};

/// The name of the entry of `__metadata__` that holds the description.
inline constexpr const char* kOptionsKey = "flashoptim_options";

/// The description as JSON, and back. Reading throws FileError, naming group and option.
std::string OptionsToText(const StateDescription& description);
StateDescription OptionsFromText(std::string_view text);

/// The name of a codec in a file: "none", "root" or "softsign".
std::string_view NameOf(Codec codec);

/// A moment in a file; null pointers where the rule or the codec has none.
struct MomentTensors {
  Moment kind = Moment::kFirst;
  const FileTensor* codes = nullptr;
  const FileTensor* scale = nullptr;
};

/// One parameter with its tensors in a file, in the file's (row-major) order.
struct ParameterState {
  std::string name;
  std::size_t group = 0;
  Codec codec = Codec::kNone;  ///< in effect
  std::vector<std::uint64_t> shape;
  std::vector<std::uint32_t> order;  ///< of dimensions in memory; empty: as they stand
  Geometry geometry;
  const FileTensor* weight = nullptr;  ///< null where the file holds states only
  const FileTensor* correction = nullptr;
  const FileTensor* step = nullptr;
  const FileTensor* stream_key = nullptr;
  std::vector<MomentTensors> moments;

  std::uint64_t elements() const { return geometry.rows * geometry.row_length; }
};

/// The optimizer state of a file, checked: every parameter has exactly the tensors that its options
/// ask for, with their dtypes and shapes. Points into the file, which must outlive it.
struct OptimizerState {
  StateDescription description;
  std::vector<ParameterState> parameters;
};

/// Nothing for a file without `flashoptim_options`: plain tensors. Throws FileError.
std::optional<OptimizerState> ReadOptimizerState(const CheckpointFile& file);

/// The data of a tensor of the parameter's shape, in the parameter's memory order and aligned.
/// Points into the file where it can, else into `storage`.
std::span<const std::byte> InMemoryOrder(const FileTensor& tensor, const ParameterState& parameter,
                                         std::vector<std::byte>& storage);

/// What the values of a moment are like.
struct MomentStatistics {
  std::uint64_t elements = 0;
  std::uint64_t nonfinite = 0;  ///< NaN or infinite, decoded
  std::uint64_t zeros = 0;      ///< decoded to 0
  std::uint64_t groups = 0;
  std::uint64_t fresh_groups = 0;  ///< whose scale is the smallest there is
  std::uint64_t flagged_groups = 0;
  /// Codes of the largest magnitude beside the one that every group has.
  std::uint64_t saturated = 0;
  float smallest_scale = 0.0F;
  float largest_scale = 0.0F;
};

/// Decodes a moment and checks that every bit of it has a meaning. Throws FileError naming the
/// tensor, the element and its value.
MomentStatistics CheckMoment(const ParameterState& parameter, const MomentTensors& moment);

/// Checks the step count. Returns the number of non-finite master weights.
/// Throws FileError.
std::uint64_t CheckWeights(const ParameterState& parameter);

/// The checks of both for all parameters of a file, and nothing else, on several threads: what
/// loading needs. Throws FileError.
void CheckState(const OptimizerState& state);

}  // namespace flashoptim

#endif  // FLASHOPTIM_STATE_FILE_H_

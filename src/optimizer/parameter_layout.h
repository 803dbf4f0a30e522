// Checks of a parameter's description, and the state tensors that it will have.
#ifndef FLASHOPTIM_OPTIMIZER_PARAMETER_LAYOUT_H_
#define FLASHOPTIM_OPTIMIZER_PARAMETER_LAYOUT_H_

#include <cstdint>
#include <vector>

#include "flashoptim/layout.h"
#include "flashoptim/state.h"
#include "optimizer/group_setup.h"

namespace flashoptim {

/// A parameter as the format sees it.
struct ParameterLayout {
  std::uint64_t elements = 0;
  Geometry geometry;
  std::vector<std::int64_t> strides;  ///< those given, or row-major
  Codec codec = Codec::kNone;
  std::int32_t correction_bits = 0;
};

/// Throws std::invalid_argument, naming the tensor, if the description is not valid. Looks at no
/// memory.
ParameterLayout LayoutOf(const Parameter& parameter, const GroupSetup& setup);

/// Appends the state tensors of parameter `index`.
void AppendState(const Parameter& parameter, const ParameterLayout& layout, const GroupSetup& setup,
                 std::size_t index, std::vector<StateEntry>& state);

/// The setup of each group. Throws std::invalid_argument for options that are not valid, groups of
/// different rules, no groups.
std::vector<GroupSetup> SetupsOf(std::span<const ParameterGroup> groups);

}  // namespace flashoptim

#endif  // FLASHOPTIM_OPTIMIZER_PARAMETER_LAYOUT_H_

// Element types of a file by name.
#ifndef FLASHOPTIM_CHECKPOINT_DTYPES_H_
#define FLASHOPTIM_CHECKPOINT_DTYPES_H_

#include <optional>
#include <string_view>

#include "flashoptim/checkpoint.h"

namespace flashoptim::checkpoint {

/// Nothing for a name that is not known.
std::optional<FileDType> DTypeOf(std::string_view name);

}  // namespace flashoptim::checkpoint

#endif  // FLASHOPTIM_CHECKPOINT_DTYPES_H_

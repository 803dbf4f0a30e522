// JSON from strangers: bounded depth, no duplicate names, valid UTF-8.
#ifndef FLASHOPTIM_CHECKPOINT_STRICT_JSON_H_
#define FLASHOPTIM_CHECKPOINT_STRICT_JSON_H_

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace flashoptim::checkpoint {

struct JsonLimits {
  int depth = 4;  ///< of nested objects and arrays
  /// Values in an array below the second level: shapes and offsets.
  std::uint64_t inner_values = UINT64_MAX;
};

/// Parses one JSON object. `what` names it in messages. Throws FileError.
nlohmann::json ParseObject(std::string_view text, const std::string& what,
                           const JsonLimits& limits);

/// A name for a message: quoted, control characters escaped, at most 200 bytes.
std::string Quoted(std::string_view name);

}  // namespace flashoptim::checkpoint

#endif  // FLASHOPTIM_CHECKPOINT_STRICT_JSON_H_

// `x.safetensors.index.json`: which file holds which tensor.
#ifndef FLASHOPTIM_CHECKPOINT_INDEX_H_
#define FLASHOPTIM_CHECKPOINT_INDEX_H_

#include <map>
#include <string>
#include <string_view>

namespace flashoptim::checkpoint {

inline constexpr std::string_view kFileEnding = ".safetensors";
inline constexpr std::string_view kIndexEnding = ".safetensors.index.json";
inline constexpr std::string_view kArchiveEnding = ".safetensors.zst";

struct Index {
  std::map<std::string, std::string> file_of;  ///< tensor name to file name, in the same folder
  std::string set_sum;                         ///< of the set of shards; empty in foreign files
};

/// Throws FileError, also for a file name that leaves the folder.
Index ParseIndex(std::string_view text, const std::string& file);

std::string IndexText(const Index& index, std::uint64_t total_bytes);

}  // namespace flashoptim::checkpoint

#endif  // FLASHOPTIM_CHECKPOINT_INDEX_H_

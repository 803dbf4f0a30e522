// The checksums of docs/format.md, section 11.
#ifndef FLASHOPTIM_CHECKPOINT_CHECKSUMS_H_
#define FLASHOPTIM_CHECKPOINT_CHECKSUMS_H_

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "flashoptim/checkpoint.h"

namespace flashoptim::checkpoint {

inline constexpr const char* kTensorSums = "flashoptim_crc32";
inline constexpr const char* kMetadataSum = "flashoptim_metadata_crc32";
inline constexpr const char* kSetSum = "flashoptim_set";
inline constexpr const char* kFormatKey = "flashoptim_format";
inline constexpr const char* kVersionKey = "flashoptim_version";
inline constexpr const char* kOurPrefix = "flashoptim_";

using Metadata = std::map<std::string, std::string>;

/// Calls `step` with the bytes done since the last call.
using BytesDone = std::function<void(std::uint64_t)>;

/// Of each tensor's name, dtype, shape and data, as `Hex` writes them; on several threads where
/// that pays. `step` is called by one of them at a time.
std::vector<std::string> ChecksumsOf(std::span<const FileTensor> tensors, const BytesDone& step);

/// Of all pairs but its own.
std::uint32_t ChecksumOf(const Metadata& metadata);

/// Eight hexadecimal digits.
std::string Hex(std::uint32_t sum);

}  // namespace flashoptim::checkpoint

#endif  // FLASHOPTIM_CHECKPOINT_CHECKSUMS_H_

// The header of a safetensors file.
#ifndef FLASHOPTIM_CHECKPOINT_HEADER_H_
#define FLASHOPTIM_CHECKPOINT_HEADER_H_

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/checksums.h"
#include "flashoptim/checkpoint.h"

namespace flashoptim::checkpoint {

inline constexpr std::uint64_t kLengthBytes = 8;

struct Header {
  std::vector<FileTensor> tensors;       ///< in the order of their data, which is not set
  std::vector<std::uint64_t> data_ends;  ///< one each; a tensor begins where the last one ended
  Metadata metadata;
};

/// The bytes that a tensor's dtype and shape ask for; nothing if there are more than 2^64.
std::optional<std::uint64_t> BytesNeeded(const FileTensor& tensor);

/// The length of the header from a file's first eight bytes; refuses one above `limit`.
std::uint64_t HeaderLength(std::span<const std::byte> first, const std::string& file,
                           std::uint64_t limit);

/// Parses a header and checks it: no overlap, no hole, no overflow, every name once. Throws
/// FileError.
Header ParseHeader(std::string_view text, const std::string& file);

/// The eight bytes and the header of tensors in this order, padded to a multiple of eight.
std::string HeaderBytes(std::span<const FileTensor> tensors, const Metadata& metadata);

}  // namespace flashoptim::checkpoint

#endif  // FLASHOPTIM_CHECKPOINT_HEADER_H_

#include "checkpoint/checksums.h"

#include <zlib.h>

#include <algorithm>
#include <cstdio>

namespace flashoptim::checkpoint {
namespace {

// Long enough for speed, short enough for a progress bar.
constexpr std::size_t kPiece = std::size_t{16} << 20;

std::uint32_t Continue(std::uint32_t sum, const void* data, std::size_t size) {
  return static_cast<std::uint32_t>(crc32_z(sum, static_cast<const Bytef*>(data), size));
}

std::uint32_t Continue(std::uint32_t sum, const std::string& text) {
  return Continue(sum, text.data(), text.size());
}

}  // namespace

std::uint32_t ChecksumOf(const FileTensor& tensor, const BytesDone& step) {
  std::string head = tensor.name + "\n" + std::string(NameOf(tensor.dtype)) + "\n";
  for (std::size_t d = 0; d < tensor.shape.size(); ++d) {
    head += (d == 0 ? "" : ",") + std::to_string(tensor.shape[d]);
  }
  std::uint32_t sum = Continue(0, head + "\n");
  for (std::size_t at = 0; at < tensor.data.size(); at += kPiece) {
    const auto piece = tensor.data.subspan(at, std::min(kPiece, tensor.data.size() - at));
    sum = Continue(sum, piece.data(), piece.size());
    if (step) step(piece.size());
  }
  return sum;
}

std::uint32_t ChecksumOf(const Metadata& metadata) {
  std::uint32_t sum = 0;
  for (const auto& [name, value] : metadata) {
    if (name == kMetadataSum) continue;
    // Lengths, so that no two sets of pairs give the same text.
    sum = Continue(sum, std::to_string(name.size()) + " " + std::to_string(value.size()) + "\n");
    sum = Continue(Continue(sum, name), value);
  }
  return sum;
}

std::string Hex(std::uint32_t sum) {
  char text[9];
  std::snprintf(text, sizeof text, "%08x", static_cast<unsigned>(sum));
  return text;
}

}  // namespace flashoptim::checkpoint

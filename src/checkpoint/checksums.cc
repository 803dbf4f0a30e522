#include "checkpoint/checksums.h"

#include <zlib.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <exception>
#include <mutex>
#include <system_error>
#include <thread>

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

std::uint32_t ChecksumOf(const FileTensor& tensor, const BytesDone& step) {
  std::string head = tensor.name + "\n" + std::string(NameOf(tensor.dtype)) + "\n";
  for (std::size_t d = 0; d < tensor.shape.size(); ++d) {
    head += (d == 0 ? "" : ",") + std::to_string(tensor.shape[d]);
  }
  std::uint32_t sum = Continue(0, head + "\n");
  for (std::size_t at = 0; at < tensor.data.size(); at += kPiece) {
    const auto piece = tensor.data.subspan(at, std::min(kPiece, tensor.data.size() - at));
    sum = Continue(sum, piece.data(), piece.size());
    step(piece.size());
  }
  return sum;
}

// A thread costs as much as so many bytes.
constexpr std::size_t kBytesPerThread = std::size_t{64} << 20;

std::size_t ThreadsFor(std::span<const FileTensor> tensors) {
  std::size_t bytes = 0;
  for (const FileTensor& tensor : tensors) bytes += tensor.data.size();
  const std::size_t processors = std::max(1U, std::thread::hardware_concurrency());
  return std::min({processors, tensors.size(), 1 + bytes / kBytesPerThread});
}

}  // namespace

std::vector<std::string> ChecksumsOf(std::span<const FileTensor> tensors, const BytesDone& step) {
  std::vector<std::string> sums(tensors.size());
  std::atomic<std::size_t> next = 0;
  std::mutex telling;
  std::exception_ptr error;  // what a thread must not end with
  const auto tell = [&](std::uint64_t bytes) {
    if (!step) return;
    const std::lock_guard lock(telling);
    step(bytes);
  };
  const auto work = [&] {
    try {
      for (std::size_t i = next++; i < tensors.size(); i = next++) {
        sums[i] = Hex(ChecksumOf(tensors[i], tell));
      }
    } catch (...) {
      const std::lock_guard lock(telling);
      error = std::current_exception();
      next = tensors.size();
    }
  };
  std::vector<std::jthread> helpers;
  try {
    const std::size_t threads = ThreadsFor(tensors);
    while (helpers.size() + 1 < threads) helpers.emplace_back(work);
  } catch (const std::system_error&) {
    // Fewer threads than wanted do the same.
  }
  work();
  helpers.clear();
  if (error) std::rethrow_exception(error);
  return sums;
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

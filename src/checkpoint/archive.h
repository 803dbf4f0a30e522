// Compressed streams. zstd.cc implements them, or no_zstd.cpp in builds without libzstd.
#ifndef FLASHOPTIM_CHECKPOINT_ARCHIVE_H_
#define FLASHOPTIM_CHECKPOINT_ARCHIVE_H_

#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <string>

namespace flashoptim::checkpoint {

using Sink = std::function<void(std::span<const std::byte>)>;

class Decompressor {
 public:
  Decompressor() = default;
  virtual ~Decompressor() = default;
  Decompressor(const Decompressor&) = delete;
  Decompressor& operator=(const Decompressor&) = delete;

  /// Fills `target` and returns how much of it; less only at the end. Throws FileError.
  virtual std::size_t Read(std::span<std::byte> target) = 0;
};

/// `compressed` must outlive it; `file` is for messages. Throws FileError.
std::unique_ptr<Decompressor> MakeDecompressor(std::span<const std::byte> compressed,
                                               const std::string& file);

class Compressor {
 public:
  Compressor() = default;
  virtual ~Compressor() = default;
  Compressor(const Compressor&) = delete;
  Compressor& operator=(const Compressor&) = delete;

  virtual void Write(std::span<const std::byte> bytes) = 0;
  virtual void Finish() = 0;
};

/// Compressed bytes go to `sink`. Throws FileError.
std::unique_ptr<Compressor> MakeCompressor(int level, Sink sink, const std::string& file);

}  // namespace flashoptim::checkpoint

#endif  // FLASHOPTIM_CHECKPOINT_ARCHIVE_H_

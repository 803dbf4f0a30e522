// Read-only memory: a mapped file, or memory that an archive is unpacked into.
#ifndef FLASHOPTIM_CHECKPOINT_MAPPING_H_
#define FLASHOPTIM_CHECKPOINT_MAPPING_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace flashoptim::checkpoint {

class Mapping {
 public:
  /// Maps a whole regular file. Throws FileError.
  static Mapping OfFile(const std::string& path);
  /// Zeroed memory. Throws FileError, naming `file`, if the machine has less.
  static Mapping OfMemory(std::uint64_t bytes, const std::string& file);

  /// Memory that lies in a nameless file of a folder. Throws FileError if the disk has less.
  static Mapping OfTemporaryFile(std::uint64_t bytes, const std::string& folder);

  Mapping(Mapping&& other) noexcept;
  Mapping& operator=(Mapping&& other) noexcept;
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;
  ~Mapping();

  std::span<const std::byte> bytes() const { return {data_, size_}; }
  /// Not of OfFile.
  std::span<std::byte> writable() { return {data_, size_}; }

 private:
  Mapping(std::byte* data, std::size_t size) : data_(data), size_(size) {}

  std::byte* data_;
  std::size_t size_;
};

}  // namespace flashoptim::checkpoint

#endif  // FLASHOPTIM_CHECKPOINT_MAPPING_H_

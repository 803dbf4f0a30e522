// Tensors in safetensors files (docs/format.md, section 11): checked reading, atomic writing.
#ifndef FLASHOPTIM_CHECKPOINT_H_
#define FLASHOPTIM_CHECKPOINT_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace flashoptim {

/// Element types of a safetensors file that have whole bytes.
enum class FileDType : std::uint8_t {
  kBool,
  kU8,
  kI8,
  kF8E5M2,
  kF8E4M3,
  kF8E8M0,
  kI16,
  kU16,
  kF16,
  kBF16,
  kI32,
  kU32,
  kF32,
  kC64,
  kF64,
  kI64,
  kU64,
};

/// The name in a file, for instance "BF16", and the bytes of an element.
std::string_view NameOf(FileDType dtype);
std::uint64_t BytesOf(FileDType dtype);

/// A file that cannot be read or written. The message names the file, the tensor and the remedy.
class FileError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// One tensor, row-major. `data` is not owned, and need not be aligned to the element.
struct FileTensor {
  std::string name;
  FileDType dtype = FileDType::kF32;
  std::vector<std::uint64_t> shape;
  std::span<const std::byte> data;

  std::uint64_t elements() const;
};

/// Tells how much of long work is done, in bytes: one call at a time, not always on the caller's
/// thread. What it throws ends the work and reaches the caller; a file is then as it was.
using FileProgress = std::function<void(std::uint64_t done, std::uint64_t total)>;

struct ReadOptions {
  /// Compares every tensor with its checksum before anything is returned. Files without checksums
  /// (of other programs) have nothing to compare.
  bool verify = true;
  /// Longest header, in bytes, that is parsed; the safetensors package has the same limit.
  std::uint64_t header_limit = 100'000'000;
  /// Where an archive is unpacked to, in a file without a name that vanishes with the object;
  /// empty: to memory.
  std::string unpack_folder;
  FileProgress progress = nullptr;
};

/// An open file, or all shards of an index. Tensors stay valid as long as the object lives. The
/// file is mapped, not copied; it must not be written in place meanwhile (WriteCheckpoint never
/// does).
class CheckpointFile {
 public:
  /// Opens `x.safetensors`, `x.safetensors.zst` or `x.safetensors.index.json`; the ending decides.
  /// Everything is checked before it returns. Throws FileError.
  static CheckpointFile Open(const std::string& path, const ReadOptions& options = {});

  /// Reads the bytes of a single file; they are not copied and must outlive the object. `name` is
  /// for messages. Throws FileError.
  static CheckpointFile FromBytes(std::span<const std::byte> bytes, const std::string& name,
                                  const ReadOptions& options = {});

  ~CheckpointFile();
  CheckpointFile(CheckpointFile&&) noexcept;
  CheckpointFile& operator=(CheckpointFile&&) noexcept;

  const std::string& path() const;
  /// In the order of their data.
  const std::vector<FileTensor>& tensors() const;
  /// Null if there is none of that name.
  const FileTensor* Find(std::string_view name) const;
  /// `__metadata__` without the checksums.
  const std::map<std::string, std::string>& metadata() const;
  /// Whether every tensor has a checksum.
  bool has_checksums() const;

 private:
  struct Impl;
  explicit CheckpointFile(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

struct WriteOptions {
  /// Goes into `__metadata__`. Names that begin with "flashoptim_" are the format's.
  std::map<std::string, std::string> metadata;
  /// Above 0: tensors are spread over files of at most so many bytes of data (one tensor is never
  /// cut), and the path must end in `.safetensors.index.json`.
  std::uint64_t shard_bytes = 0;
  /// For paths that end in `.zst`.
  int zstd_level = 3;
  FileProgress progress = nullptr;
};

/// Writes tensors to `path`, whose ending decides the kind as for Open. A process killed at any
/// moment leaves the old contents or the new ones. Throws FileError; what was there then stays.
void WriteCheckpoint(const std::string& path, std::span<const FileTensor> tensors,
                     const WriteOptions& options = {});

/// Whether this build reads and writes `.zst`.
bool HasZstd();

}  // namespace flashoptim

#endif  // FLASHOPTIM_CHECKPOINT_H_

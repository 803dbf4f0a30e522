// A file that appears under its name whole or not at all.
#ifndef FLASHOPTIM_CHECKPOINT_ATOMIC_FILE_H_
#define FLASHOPTIM_CHECKPOINT_ATOMIC_FILE_H_

#include <cstddef>
#include <optional>
#include <span>
#include <string>

namespace flashoptim::checkpoint {

/// Writes to `.NAME.tmp` beside the target. A name that is always the same: what a killed process
/// left is used again by the next one. Every function throws FileError.
class AtomicFile {
 public:
  /// Refuses a target that another process is writing.
  explicit AtomicFile(const std::string& path);
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;
  /// Removes the temporary file unless Commit was reached.
  ~AtomicFile();

  void Write(std::span<const std::byte> bytes);
  /// Syncs the data, renames, and syncs the folder, so that not even a power cut mixes old and new.
  void Commit();
  /// Whether the target is the new file, be it that the folder could not be synced.
  bool committed() const { return descriptor_ < 0; }
  /// Where the data are until then.
  const std::string& temporary() const { return temporary_; }

 private:
  void SetPermissions(unsigned permissions) const;

  std::string target_;
  std::string temporary_;
  int descriptor_ = -1;
  std::optional<unsigned> permissions_;  // of the old file
};

/// Makes the names of a folder durable.
void SyncFolder(const std::string& folder);

}  // namespace flashoptim::checkpoint

#endif  // FLASHOPTIM_CHECKPOINT_ATOMIC_FILE_H_

#include "checkpoint/atomic_file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <system_error>

#include "flashoptim/checkpoint.h"

namespace flashoptim::checkpoint {
namespace {

// Linux writes at most about 2 GiB in one call.
constexpr std::size_t kLargestWrite = std::size_t{1} << 30;

[[noreturn]] void Fail(const std::string& file, const std::string& what, int error) {
  throw FileError(file + ": " + what + ": " + std::generic_category().message(error));
}

// The file that a name stands for, through symbolic links, so that a rename keeps the link.
std::string Resolved(const std::string& path) {
  std::error_code error;
  const std::filesystem::path resolved = std::filesystem::weakly_canonical(path, error);
  return error || resolved.empty() ? path : resolved.string();
}

std::string FolderOf(const std::string& path) {
  const std::string folder = std::filesystem::path(path).parent_path().string();
  return folder.empty() ? "." : folder;
}

}  // namespace

void SyncFolder(const std::string& folder) {
  const int descriptor = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (descriptor < 0) Fail(folder, "the folder cannot be opened", errno);
  // Some network file systems cannot sync a folder, and say so with EINVAL.
  const int error = ::fsync(descriptor) != 0 && errno != EINVAL ? errno : 0;
  ::close(descriptor);
  if (error != 0) Fail(folder, "the folder cannot be synced", error);
}

AtomicFile::AtomicFile(const std::string& path) : target_(Resolved(path)) {
  const std::filesystem::path target(target_);
  temporary_ = (target.parent_path() / ("." + target.filename().string() + ".tmp")).string();
  for (;;) {
    descriptor_ =
        ::open(temporary_.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0666);
    if (descriptor_ < 0) Fail(path, "no temporary file can be made beside it", errno);
    if (::flock(descriptor_, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) {
      ::close(descriptor_);
      descriptor_ = -1;
      throw FileError(path + ": another process is writing it; wait until it has finished");
    }
    // The file may have been renamed between opening and locking: then it is no longer ours.
    struct stat opened {};
    struct stat named {};
    const bool same = ::fstat(descriptor_, &opened) == 0 &&
                      ::lstat(temporary_.c_str(), &named) == 0 && opened.st_ino == named.st_ino;
    if (same && ::ftruncate(descriptor_, 0) == 0) break;
    const int error = errno;
    ::close(descriptor_);
    descriptor_ = -1;
    if (same) Fail(path, "its temporary file cannot be emptied", error);
  }
  struct stat old {};
  if (::stat(target_.c_str(), &old) == 0) {
    permissions_ = old.st_mode & 07777U;
    // Until it is finished its owner may write it: the next process has to open it if this is
    // killed.
    SetPermissions(*permissions_ | S_IWUSR);
  }
}

AtomicFile::~AtomicFile() {
  if (descriptor_ < 0) return;
  ::unlink(temporary_.c_str());
  ::close(descriptor_);
}

void AtomicFile::Write(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t count = ::write(descriptor_, bytes.data(), std::min(bytes.size(), kLargestWrite));
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) Fail(target_, "it cannot be written", errno);
    bytes = bytes.subspan(static_cast<std::size_t>(count));
  }
}

// Best effort: a file of somebody else's keeps the default permissions.
void AtomicFile::SetPermissions(unsigned permissions) const {
  static_cast<void>(::fchmod(descriptor_, permissions));
}

void AtomicFile::Commit() {
  if (permissions_) SetPermissions(*permissions_);
  if (::fsync(descriptor_) != 0) Fail(target_, "it cannot be synced to disk", errno);
  if (std::rename(temporary_.c_str(), target_.c_str()) != 0) {
    Fail(target_, "the finished file cannot be renamed to it", errno);
  }
  ::close(descriptor_);
  descriptor_ = -1;
  SyncFolder(FolderOf(target_));
}

}  // namespace flashoptim::checkpoint

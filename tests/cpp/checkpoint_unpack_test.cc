// Archives unpacked to disk: on a file system whose files have names only, as those of networks.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdarg>
#include <filesystem>
#include <string>
#include <vector>

#include "flashoptim/checkpoint.h"
#include "sanitizers.h"
#include "temporary_folder.h"

namespace {

bool refuses = false;  // O_TMPFILE
int refused = 0;

}  // namespace

// Takes the place of the C library's for this program.
// NOLINTNEXTLINE(readability-inconsistent-declaration-parameter-name): the library's are reserved
extern "C" int open(const char* path, int flags, ...) {
  std::va_list more;
  va_start(more, flags);
  const auto mode = va_arg(more, unsigned);
  va_end(more);
  if (refuses && (flags & O_TMPFILE) == O_TMPFILE) {
    ++refused;
    errno = EOPNOTSUPP;
    return -1;
  }
  return static_cast<int>(syscall(SYS_openat, AT_FDCWD, path, flags, mode));
}

namespace flashoptim {
namespace {

TEST(Unpacking, DoesWithoutFilesWithoutNames) {
  if (!HasZstd()) GTEST_SKIP() << "no zstd";
  if (testing::kSanitized) GTEST_SKIP() << "sanitizers have an open() of their own";
  const testing::TemporaryFolder folder;
  const std::string path = folder / "x.safetensors.zst";
  const std::vector<std::byte> data(1000, std::byte{7});
  const FileTensor tensor{"t", FileDType::kU8, {1000}, data};
  WriteCheckpoint(path, {&tensor, 1});
  ReadOptions options;
  options.unpack_folder = folder.path().string();
  refuses = true;
  const CheckpointFile file = CheckpointFile::Open(path, options);
  refuses = false;
  EXPECT_EQ(refused, 1);
  ASSERT_EQ(file.tensors().size(), 1U);
  EXPECT_TRUE(std::ranges::equal(file.tensors()[0].data, data));
  // It has no name any more.
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder.path()), {}), 1);
}

}  // namespace
}  // namespace flashoptim

// A process that is killed while it writes leaves the old contents or the new ones.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <string>
#include <vector>

#include "flashoptim/checkpoint.h"
#include "temporary_folder.h"
#include "tensor_state.h"

namespace flashoptim {
namespace {

constexpr std::size_t kElements = 40'000;
constexpr int kTensors = 3;

// Every element of every tensor is the version.
void Write(const std::string& path, std::uint64_t shard_bytes, std::int32_t version) {
  const std::vector<std::int32_t> values(kElements, version);
  std::vector<FileTensor> tensors;
  tensors.reserve(kTensors);
  for (int i = 0; i < kTensors; ++i) {
    tensors.push_back(
        {"t" + std::to_string(i), FileDType::kI32, {kElements}, std::as_bytes(std::span(values))});
  }
  WriteOptions options;
  options.shard_bytes = shard_bytes;
  options.metadata["version"] = std::to_string(version);
  WriteCheckpoint(path, tensors, options);
}

// The version of a file whose tensors all have the same.
std::int32_t VersionOf(const std::string& path) {
  const CheckpointFile file = CheckpointFile::Open(path);
  EXPECT_EQ(file.tensors().size(), static_cast<std::size_t>(kTensors));
  const std::int32_t version = std::stoi(file.metadata().at("version"));
  const std::vector<std::int32_t> values(kElements, version);
  for (const FileTensor& tensor : file.tensors()) {
    EXPECT_EQ(std::memcmp(tensor.data.data(), values.data(), tensor.data.size()), 0);
  }
  return version;
}

// Writes one version after the other until it is killed after so many microseconds.
void KillAWriter(const std::string& path, std::uint64_t shard_bytes, std::int32_t version,
                 unsigned microseconds) {
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    try {
      for (;;) Write(path, shard_bytes, version++);
    } catch (...) {
      ::_exit(1);
    }
  }
  ::usleep(microseconds);
  ASSERT_EQ(::kill(child, SIGKILL), 0);
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFSIGNALED(status)) << "the writer failed before it was killed";
}

struct Result {
  int interrupted = 0;  // killed with a temporary file in place
  int advanced = 0;     // wrote at least one version before
};

Result KillMany(const std::string& name, std::uint64_t shard_bytes, int times) {
  const testing::TemporaryFolder folder;
  const std::string path = folder / name;
  testing::Random random(42);
  Result result;
  std::int32_t version = 1;
  // Moments of killing are spread over two writes, however fast this disk is today.
  const auto start = std::chrono::steady_clock::now();
  constexpr int kMeasured = 4;
  for (int i = 0; i < kMeasured; ++i) Write(path, shard_bytes, version);
  const auto one = std::chrono::duration_cast<std::chrono::microseconds>(
                       std::chrono::steady_clock::now() - start) /
                   kMeasured;
  const auto longest = static_cast<std::uint64_t>(2 * one.count() + 2000);
  for (int i = 0; i < times && !::testing::Test::HasFailure(); ++i) {
    KillAWriter(path, shard_bytes, version + 1, static_cast<unsigned>(random.Below(longest)));
    const std::int32_t found = VersionOf(path);
    EXPECT_GE(found, version);
    result.advanced += found > version ? 1 : 0;
    version = found;
    for (const auto& entry : std::filesystem::directory_iterator(folder.path())) {
      result.interrupted += entry.path().extension() == ".tmp" ? 1 : 0;
    }
  }
  // The next one that is not killed cleans up.
  Write(path, shard_bytes, version + 1);
  EXPECT_EQ(VersionOf(path), version + 1);
  std::size_t left = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder.path())) {
    left += entry.path().extension() == ".tmp" ? 0U : 1U;
  }
  EXPECT_EQ(left, shard_bytes == 0 ? 1U : 1U + kTensors);
  return result;
}

TEST(KilledWriter, LeavesTheOldFileOrTheNewOne) {
  const Result result = KillMany("x.safetensors", 0, 200);
  // Otherwise the moments of killing prove nothing.
  EXPECT_GT(result.interrupted, 10);
  EXPECT_GT(result.advanced, 10);
}

TEST(KilledWriter, LeavesTheOldShardsOrTheNewOnes) {
  const Result result = KillMany("x.safetensors.index.json", kElements * 4, 100);
  EXPECT_GT(result.interrupted, 5);
  EXPECT_GT(result.advanced, 5);
}

}  // namespace
}  // namespace flashoptim

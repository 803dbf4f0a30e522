// Sets of shards that are written while others write or read them, and writing that is given up.
#include <gtest/gtest.h>

#include <atomic>
#include <filesystem>
#include <iterator>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "flashoptim/checkpoint.h"
#include "temporary_folder.h"

namespace flashoptim {
namespace {

using testing::TemporaryFolder;

constexpr std::size_t kTensors = 16;

std::vector<FileTensor> TensorsOn(const std::vector<std::byte>& data) {
  const std::size_t size = data.size() / kTensors;
  std::vector<FileTensor> tensors;
  for (std::size_t i = 0; i < kTensors; ++i) {
    tensors.push_back(
        {"t" + std::to_string(i), FileDType::kU8, {size}, std::span(data).subspan(i * size, size)});
  }
  return tensors;
}

// Each tensor in a shard of its own.
WriteOptions OneEach() {
  WriteOptions options;
  options.shard_bytes = 1;
  return options;
}

auto FilesIn(const TemporaryFolder& folder) {
  return std::distance(std::filesystem::directory_iterator(folder.path()), {});
}

TEST(Shards, ASecondWriterIsRefusedBeforeItWritesAny) {
  const TemporaryFolder folder;
  const std::string path = folder / "m.safetensors.index.json";
  const std::vector<std::byte> data(kTensors * 1000);
  WriteOptions first = OneEach();
  int refused = 0;
  // Both passes, checksums and data, tell of each tensor: the second begins at the first shard.
  first.progress = [&](std::uint64_t done, std::uint64_t total) {
    if (done <= total / 2) return;
    const auto before = FilesIn(folder);
    EXPECT_THROW(WriteCheckpoint(path, TensorsOn(data), OneEach()), FileError);
    EXPECT_EQ(FilesIn(folder), before);
    ++refused;
  };
  WriteCheckpoint(path, TensorsOn(data), first);
  EXPECT_EQ(refused, static_cast<int>(kTensors));
  EXPECT_EQ(CheckpointFile::Open(path).tensors().size(), kTensors);
  EXPECT_EQ(FilesIn(folder), static_cast<std::ptrdiff_t>(kTensors) + 1);
}

TEST(Shards, AFailedWriteLeavesNone) {
  const TemporaryFolder folder;
  const std::string path = folder / "m.safetensors.index.json";
  const std::vector<std::byte> data(kTensors * 1000);
  WriteOptions failing = OneEach();
  failing.progress = [](std::uint64_t done, std::uint64_t total) {
    if (done == total) throw std::runtime_error("given up");
  };
  for (const std::ptrdiff_t there : {std::ptrdiff_t{0}, std::ptrdiff_t{kTensors} + 1}) {
    if (there != 0) WriteCheckpoint(path, TensorsOn(data), OneEach());
    EXPECT_THROW(WriteCheckpoint(path, TensorsOn(data), failing), std::runtime_error);
    EXPECT_EQ(FilesIn(folder), there);
  }
  EXPECT_EQ(CheckpointFile::Open(path).tensors().size(), kTensors);
}

TEST(Shards, AReaderFindsTheOldSetOrTheNewOne) {
  const TemporaryFolder folder;
  const std::string path = folder / "m.safetensors.index.json";
  const std::vector<std::byte> data(kTensors * 1000);
  WriteCheckpoint(path, TensorsOn(data), OneEach());
  std::atomic<bool> stop{false};
  std::thread writer([&] {
    while (!stop.load()) WriteCheckpoint(path, TensorsOn(data), OneEach());
  });
  for (int i = 0; i < 3000; ++i) {
    try {
      EXPECT_EQ(CheckpointFile::Open(path).tensors().size(), kTensors);
    } catch (const FileError& error) {
      ADD_FAILURE() << error.what();
    }
  }
  stop.store(true);
  writer.join();
}

// Long data have their checksums taken by several threads.
TEST(Progress, WhatItThrowsReachesTheCaller) {
  const TemporaryFolder folder;
  const std::string path = folder / "x.safetensors";
  const std::vector<std::byte> data(kTensors << 24U);
  const auto give_up = [](std::uint64_t, std::uint64_t) { throw std::runtime_error("given up"); };
  WriteOptions writing;
  writing.progress = give_up;
  EXPECT_THROW(WriteCheckpoint(path, TensorsOn(data), writing), std::runtime_error);
  EXPECT_EQ(FilesIn(folder), 0);
  WriteCheckpoint(path, TensorsOn(data));
  ReadOptions reading;
  reading.progress = give_up;
  EXPECT_THROW(CheckpointFile::Open(path, reading), std::runtime_error);
}

}  // namespace
}  // namespace flashoptim

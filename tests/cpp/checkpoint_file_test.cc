// Files that are written are read back: single, sharded, compressed; what is damaged is refused.
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <numeric>
#include <string>
#include <vector>

#include "flashoptim/checkpoint.h"
#include "temporary_folder.h"

namespace flashoptim {
namespace {

using testing::ReadAll;
using testing::TemporaryFolder;
using testing::WriteAll;

// Tensors with data of their own.
class Tensors {
 public:
  void Add(const std::string& name, FileDType dtype, std::vector<std::uint64_t> shape) {
    FileTensor tensor{name, dtype, std::move(shape), {}};
    data_.emplace_back(tensor.elements() * BytesOf(dtype));
    for (std::byte& byte : data_.back()) byte = static_cast<std::byte>(next_ = next_ * 7 + 3);
    tensor.data = data_.back();
    tensors.push_back(std::move(tensor));
  }
  std::vector<FileTensor> tensors;

 private:
  std::vector<std::vector<std::byte>> data_;
  unsigned next_ = 1;
};

Tensors Several() {
  Tensors several;
  several.Add("model.weight", FileDType::kBF16, {5, 7});
  several.Add("model.weight.exp_avg", FileDType::kI8, {5, 7});
  several.Add("scalar", FileDType::kF32, {});
  several.Add("empty", FileDType::kI64, {0, 3});
  several.Add("n\xc3\xa4me \"quoted\"", FileDType::kU8, {1});
  several.Add("wide", FileDType::kF64, {300});
  return several;
}

Tensors One() {
  Tensors one;
  one.Add("a", FileDType::kF32, {2});
  return one;
}

unsigned PermissionsOf(const std::string& file) {
  struct stat status {};
  return ::stat(file.c_str(), &status) == 0 ? status.st_mode & 0777U : 0U;
}

void ExpectSame(const CheckpointFile& file, const std::vector<FileTensor>& tensors) {
  ASSERT_EQ(file.tensors().size(), tensors.size());
  for (const FileTensor& wanted : tensors) {
    const FileTensor* found = file.Find(wanted.name);
    ASSERT_NE(found, nullptr) << wanted.name;
    EXPECT_EQ(found->dtype, wanted.dtype);
    EXPECT_EQ(found->shape, wanted.shape);
    EXPECT_TRUE(std::ranges::equal(found->data, wanted.data)) << wanted.name;
  }
}

std::string MessageOf(const std::string& path) {
  try {
    CheckpointFile::Open(path);
  } catch (const FileError& error) {
    return error.what();
  }
  return "";
}

struct Kind {
  const char* name;
  std::uint64_t shard_bytes;
};

class Kinds : public ::testing::TestWithParam<Kind> {};

TEST_P(Kinds, WhatIsWrittenIsRead) {
  if (std::string(GetParam().name).ends_with(".zst") && !HasZstd()) GTEST_SKIP() << "no zstd";
  const TemporaryFolder folder;
  const std::string path = folder / GetParam().name;
  const Tensors several = Several();
  WriteOptions options;
  options.metadata["note"] = "two\nlines";
  options.shard_bytes = GetParam().shard_bytes;
  std::uint64_t last_done = 0;
  std::uint64_t last_total = 0;
  options.progress = [&](std::uint64_t done, std::uint64_t total) {
    EXPECT_GT(done, last_done);
    last_done = done;
    last_total = total;
  };
  WriteCheckpoint(path, several.tensors, options);
  EXPECT_EQ(last_done, last_total);
  const CheckpointFile file = CheckpointFile::Open(path);
  ExpectSame(file, several.tensors);
  EXPECT_TRUE(file.has_checksums());
  EXPECT_EQ(file.metadata().at("note"), "two\nlines");
  EXPECT_EQ(file.metadata().at("flashoptim_format"), "1");
  EXPECT_EQ(file.Find("no such"), nullptr);
  for (const auto& entry : std::filesystem::directory_iterator(folder.path())) {
    EXPECT_NE(entry.path().extension(), ".tmp");
  }
}

TEST_P(Kinds, TheSameContentsGiveTheSameBytes) {
  if (std::string(GetParam().name).ends_with(".zst") && !HasZstd()) GTEST_SKIP() << "no zstd";
  const TemporaryFolder a;
  const TemporaryFolder b;
  Tensors several = Several();
  WriteOptions options;
  options.shard_bytes = GetParam().shard_bytes;
  WriteCheckpoint(a / GetParam().name, several.tensors, options);
  std::reverse(several.tensors.begin(), several.tensors.end());
  WriteCheckpoint(b / GetParam().name, several.tensors, options);
  for (const auto& entry : std::filesystem::directory_iterator(a.path())) {
    const std::string name = entry.path().filename().string();
    EXPECT_EQ(ReadAll(a / name), ReadAll(b / name)) << name;
  }
}

INSTANTIATE_TEST_SUITE_P(All, Kinds,
                         ::testing::Values(Kind{"x.safetensors", 0}, Kind{"x.safetensors.zst", 0},
                                           Kind{"x.safetensors.index.json", 100}),
                         [](const auto& each) {
                           std::string name = each.param.name;
                           std::replace(name.begin(), name.end(), '.', '_');
                           return name;
                         });

TEST(CheckpointFile, EveryFlippedBitIsNoticed) {
  const TemporaryFolder folder;
  Tensors small;
  small.Add("a", FileDType::kF32, {2});
  small.Add("b.step", FileDType::kU8, {3});
  WriteOptions options;
  options.metadata["flashoptim_options"] = "lr 1";
  WriteCheckpoint(folder / "x.safetensors", small.tensors, options);
  const std::string good = ReadAll(folder / "x.safetensors");
  for (std::size_t bit = 0; bit < good.size() * 8; ++bit) {
    std::string bad = good;
    bad[bit / 8] = static_cast<char>(static_cast<unsigned char>(bad[bit / 8]) ^ (1U << bit % 8));
    EXPECT_THROW(CheckpointFile::FromBytes(std::as_bytes(std::span(bad)), "flipped"), FileError)
        << "bit " << bit;
  }
}

TEST(CheckpointFile, EveryShorterFileIsRefused) {
  const TemporaryFolder folder;
  const Tensors several = Several();
  for (const std::string name : {"x.safetensors", "x.safetensors.zst"}) {
    if (name.ends_with(".zst") && !HasZstd()) continue;
    WriteCheckpoint(folder / name, several.tensors);
    const std::string good = ReadAll(folder / name);
    for (std::size_t size = 0; size < good.size(); size += 1 + size / 50) {
      WriteAll(folder / name, good.substr(0, size));
      EXPECT_THROW(CheckpointFile::Open(folder / name), FileError) << name << " " << size;
    }
    WriteAll(folder / name, good + "x");
    EXPECT_THROW(CheckpointFile::Open(folder / name), FileError) << name;
  }
}

TEST(CheckpointFile, AChecksumNamesItsTensor) {
  const TemporaryFolder folder;
  const Tensors several = Several();
  WriteCheckpoint(folder / "x.safetensors", several.tensors);
  std::string bytes = ReadAll(folder / "x.safetensors");
  bytes.back() ^= 1;
  WriteAll(folder / "x.safetensors", bytes);
  EXPECT_NE(MessageOf(folder / "x.safetensors").find("tensor 'n\xc3\xa4me"), std::string::npos);
  ReadOptions unverified;
  unverified.verify = false;
  EXPECT_NO_THROW(CheckpointFile::Open(folder / "x.safetensors", unverified));
}

TEST(CheckpointFile, AnotherSetOfShardsReplacesTheFirst) {
  const TemporaryFolder folder;
  const std::string path = folder / "m.safetensors.index.json";
  const Tensors several = Several();
  WriteOptions options;
  options.shard_bytes = 60;
  WriteCheckpoint(path, several.tensors, options);
  const CheckpointFile old = CheckpointFile::Open(path);
  Tensors other;
  other.Add("only", FileDType::kF32, {9});
  WriteCheckpoint(path, other.tensors, options);
  ExpectSame(old, several.tensors);  // mapped, so still whole
  ExpectSame(CheckpointFile::Open(path), other.tensors);
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder.path()), {}), 2);
}

TEST(CheckpointFile, AShardOfAnotherSetIsRefused) {
  const TemporaryFolder folder;
  const std::string path = folder / "m.safetensors.index.json";
  Tensors a;
  a.Add("only", FileDType::kF32, {9});
  Tensors b;
  b.Add("skipped", FileDType::kF32, {1});
  b.Add("only", FileDType::kF32, {9});
  b.tensors.erase(b.tensors.begin());
  WriteOptions options;
  options.shard_bytes = 60;
  WriteCheckpoint(path, a.tensors, options);
  const std::string shard = folder / "m-g000001-00001-of-00001.safetensors";
  const std::string first = ReadAll(shard);
  ASSERT_FALSE(first.empty());
  WriteCheckpoint(path, b.tensors, options);
  WriteAll(folder / "m-g000002-00001-of-00001.safetensors", first);
  EXPECT_NE(MessageOf(path).find("another set"), std::string::npos) << MessageOf(path);
  std::filesystem::remove(folder / "m-g000002-00001-of-00001.safetensors");
  EXPECT_NE(MessageOf(path).find("m-g000002"), std::string::npos);
}

TEST(CheckpointFile, AFailedWriteLeavesTheOldFile) {
  const TemporaryFolder folder;
  const std::string path = folder / "x.safetensors";
  const Tensors good = One();
  WriteCheckpoint(path, good.tensors);
  const std::string before = ReadAll(path);
  std::vector<FileTensor> twice{good.tensors[0], good.tensors[0]};
  EXPECT_THROW(WriteCheckpoint(path, twice), FileError);
  std::vector<FileTensor> not_utf8{good.tensors[0]};
  not_utf8[0].name = "\xff";
  EXPECT_THROW(WriteCheckpoint(path, not_utf8), FileError);
  std::vector<FileTensor> short_one{good.tensors[0]};
  short_one[0].shape = {3};
  EXPECT_THROW(WriteCheckpoint(path, short_one), FileError);
  // 2^64 bytes, of which the low 64 bits are none.
  const FileTensor wraps{"w", FileDType::kU8, {1ULL << 33U, 1ULL << 31U}, {}};
  EXPECT_THROW(WriteCheckpoint(path, {&wraps, 1}), FileError);
  // Its name stands in the header twice, which no reader would take.
  FileTensor long_name{"", FileDType::kU8, {0}, {}};
  long_name.name.resize(60'000'000, 'n');
  EXPECT_THROW(WriteCheckpoint(path, {&long_name, 1}), FileError);
  EXPECT_THROW(WriteCheckpoint(folder / "none/x.safetensors", good.tensors), FileError);
  EXPECT_THROW(WriteCheckpoint(folder / "x.bin", good.tensors), FileError);
  EXPECT_EQ(ReadAll(path), before);
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder.path()), {}), 1);
}

TEST(CheckpointFile, ALinkAndPermissionsStay) {
  const TemporaryFolder folder;
  const Tensors tensors = One();
  WriteCheckpoint(folder / "real.safetensors", tensors.tensors);
  ASSERT_EQ(::chmod((folder / "real.safetensors").c_str(), 0640), 0);
  std::filesystem::create_symlink("real.safetensors", folder / "link.safetensors");
  WriteCheckpoint(folder / "link.safetensors", tensors.tensors);
  EXPECT_TRUE(std::filesystem::is_symlink(folder / "link.safetensors"));
  EXPECT_EQ(PermissionsOf(folder / "real.safetensors"), 0640U);
}

// What a killed process leaves of it must not keep its owner from writing it the next time.
TEST(CheckpointFile, AReadOnlyFileIsWrittenThroughAFileThatIsNot) {
  const TemporaryFolder folder;
  const std::string path = folder / "x.safetensors";
  const Tensors tensors = One();
  WriteCheckpoint(path, tensors.tensors);
  ASSERT_EQ(::chmod(path.c_str(), 0400), 0);
  WriteOptions options;
  unsigned meanwhile = 0;
  options.progress = [&](std::uint64_t, std::uint64_t) {
    meanwhile = PermissionsOf(folder / ".x.safetensors.tmp");
  };
  WriteCheckpoint(path, tensors.tensors, options);
  EXPECT_EQ(meanwhile, 0600U);
  EXPECT_EQ(PermissionsOf(path), 0400U);
}

}  // namespace
}  // namespace flashoptim

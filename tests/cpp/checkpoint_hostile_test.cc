// Headers that lie: each is refused with a message that names the tensor.
#include <gtest/gtest.h>
#include <unistd.h>

#include <string>
#include <vector>

#include "flashoptim/checkpoint.h"
#include "temporary_folder.h"

namespace flashoptim {
namespace {

// A file of this header and so many bytes of data.
std::string FileOf(const std::string& header, std::size_t data) {
  std::string bytes;
  for (unsigned i = 0; i < 8; ++i) bytes += static_cast<char>(header.size() >> (8 * i) & 0xff);
  return bytes + header + std::string(data, '\1');
}

struct Case {
  const char* name;
  std::string header;
  std::size_t data;
  const char* says;  // part of the message; null: the file is fine
};

std::string Nested(int levels) {
  return R"({"a":)" + std::string(static_cast<std::size_t>(levels), '[') +
         std::string(static_cast<std::size_t>(levels), ']') + "}";
}

std::string Entry(const std::string& dtype, const std::string& shape, const std::string& offsets) {
  return R"({"bad":{"dtype":)" + dtype + R"(,"shape":)" + shape + R"(,"data_offsets":)" + offsets +
         "}}";
}

std::vector<Case> Cases() {
  const std::string two =
      R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},"bad":{"dtype":"U8","shape":[4],"data_offsets":)";
  return {
      {"fine", Entry(R"("U8")", "[4]", "[0,4]"), 4, nullptr},
      {"fine_empty", "{}", 0, nullptr},
      {"fine_padded", "{}      ", 0, nullptr},
      {"overlap", two + "[2,6]}}", 6, "'bad': its data begin at byte 2"},
      {"same_place", two + "[0,4]}}", 4, "'bad': its data begin at byte 0"},
      {"hole", two + "[5,9]}}", 9, "'bad': its data begin at byte 5"},
      {"hole_at_begin", Entry(R"("U8")", "[4]", "[1,5]"), 5, "'bad': its data begin at byte 1"},
      {"cut_off", two + "[4,8]}}", 7, "'bad': the data should end at byte 8"},
      {"data_behind", two + "[4,8]}}", 9, "there is more in the file"},
      {"size_wrong", Entry(R"("F32")", "[4]", "[0,4]"), 4, "'bad': data_offsets span 4 bytes"},
      {"huge_shape", Entry(R"("F32")", "[4294967296,4294967296]", "[0,4]"), 4, "more than 2^64"},
      {"huge_offsets", Entry(R"("U8")", "[18446744073709551615]", "[0,18446744073709551615]"), 4,
       "'bad': the data should end at byte 18446744073709551615"},
      {"beyond_64_bits", Entry(R"("U8")", "[4]", "[0,18446744073709551616]"), 4,
       "'bad': data_offsets holds"},
      {"negative", Entry(R"("U8")", "[-4]", "[0,4]"), 4, "'bad': shape holds '-4'"},
      {"fraction", Entry(R"("U8")", "[4.0]", "[0,4]"), 4, "'bad': shape holds '4.0'"},
      {"backwards", Entry(R"("U8")", "[4]", "[4,0]"), 4, "'bad': data_offsets are not"},
      // Long names are cut, in front of the character that does not fit whole.
      {"long_name", R"({")" + std::string(199, 'a') + "\xc3\xbc\":1}", 0,
       "a...': its entry must have"},
      {"three_offsets", Entry(R"("U8")", "[4]", "[0,4,8]"), 4, "'bad': data_offsets are not"},
      {"unknown_dtype", Entry(R"("F3")", "[4]", "[0,4]"), 4, "'bad': the dtype"},
      {"dtype_of_half_bytes", Entry(R"("F4")", "[8]", "[0,4]"), 4, "'bad': the dtype"},
      {"dtype_number", Entry("3", "[4]", "[0,4]"), 4, "'bad': the dtype"},
      {"no_shape", R"({"bad":{"dtype":"U8","data_offsets":[0,4]}})", 4, "'bad': its entry must"},
      {"more_keys", R"({"bad":{"dtype":"U8","shape":[4],"data_offsets":[0,4],"extra":1}})", 4,
       "'bad': its entry must"},
      {"duplicate", two + R"([4,8]},"a":{"dtype":"U8","shape":[0],"data_offsets":[8,8]}})", 8,
       "the name 'a' twice"},
      {"duplicate_key", R"({"bad":{"dtype":"U8","dtype":"I8","shape":[4],"data_offsets":[0,4]}})",
       4, "the name 'dtype' twice"},
      {"nul_in_name", R"({"b\u0000ad":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}})", 4,
       "'b\\x00ad': its name holds a NUL"},
      {"not_utf8", "{\"b\xff\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]}}", 4,
       "not valid JSON"},
      {"deep", Nested(100'000), 0, "nested more than"},
      {"long_shape",
       Entry(R"("U8")",
             "[1" +
                 [] {
                   std::string s;
                   for (int i = 0; i < 100; ++i) s += ",1";
                   return s;
                 }() +
                 "]",
             "[0,1]"),
       1, "a list of more than 64"},
      {"an_array", "[]", 0, "not a JSON object"},
      {"no_json", "hello", 0, "not valid JSON"},
      {"text_behind", "{}{}", 0, "not valid JSON"},
      {"metadata_list", R"({"__metadata__":[]})", 0, "__metadata__ is not an object"},
      {"metadata_number", R"({"__metadata__":{"a":1}})", 0, "'a' is not a text"},
      {"ours_without_sums", R"({"__metadata__":{"flashoptim_format":"1"}})", 0,
       "lack 'flashoptim_crc32'"},
      {"ours_without_version", R"({"__metadata__":{"flashoptim_crc32":"{}"}})", 0,
       "lack 'flashoptim_format'"},
      {"ours_with_a_wrong_sum",
       R"({"__metadata__":{"flashoptim_crc32":"{}","flashoptim_format":"1","flashoptim_metadata_crc32":"00000000"}})",
       0, "the checksum of its metadata is"},
  };
}

class Hostile : public ::testing::TestWithParam<Case> {};

TEST_P(Hostile, IsRefusedByName) {
  const Case& c = GetParam();
  const std::string bytes = FileOf(c.header, c.data);
  const auto read = [&] { CheckpointFile::FromBytes(std::as_bytes(std::span(bytes)), "x"); };
  if (c.says == nullptr) {
    EXPECT_NO_THROW(read());
    return;
  }
  try {
    read();
    FAIL() << "was read";
  } catch (const FileError& error) {
    EXPECT_NE(std::string(error.what()).find(c.says), std::string::npos) << error.what();
    EXPECT_LT(std::string(error.what()).size(), 1000U);
  }
}

INSTANTIATE_TEST_SUITE_P(All, Hostile, ::testing::ValuesIn(Cases()),
                         [](const auto& each) { return std::string(each.param.name); });

TEST(Hostile, AHugeHeaderIsNotRead) {
  std::string bytes = FileOf("{}", 0);
  for (unsigned i = 0; i < 8; ++i) bytes[i] = '\xff';
  EXPECT_THROW(CheckpointFile::FromBytes(std::as_bytes(std::span(bytes)), "x"), FileError);
  ReadOptions options;
  options.header_limit = 1;
  const std::string fine = FileOf("{}", 0);
  EXPECT_THROW(CheckpointFile::FromBytes(std::as_bytes(std::span(fine)), "x", options), FileError);
}

TEST(Hostile, AnotherVersionIsRefusedByItsNumber) {
  const testing::TemporaryFolder folder;
  const std::string path = folder / "x.safetensors";
  WriteOptions options;
  // The writer sets the version itself, so it is changed afterwards with its checksum.
  WriteCheckpoint(path, {}, options);
  std::string text = testing::ReadAll(path);
  const std::string key = R"("flashoptim_format":")";
  text[text.find(key) + key.size()] = '9';
  const auto message = [&] {
    try {
      CheckpointFile::FromBytes(std::as_bytes(std::span(text)), "x");
    } catch (const FileError& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  const std::string wrong_sum = message();
  const std::string says = "the checksum of its metadata is ";
  ASSERT_NE(wrong_sum.find(says), std::string::npos);
  const std::string sum = wrong_sum.substr(wrong_sum.find(says) + says.size(), 8);
  const std::string sum_key = R"("flashoptim_metadata_crc32":")";
  text.replace(text.find(sum_key) + sum_key.size(), 8, sum);
  EXPECT_NE(message().find("format version '9'"), std::string::npos) << message();
}

TEST(Hostile, AnIndexCannotLeaveItsFolder) {
  const testing::TemporaryFolder folder;
  const std::string path = folder / "x.safetensors.index.json";
  for (const std::string file :
       {"../y.safetensors", "/etc/passwd", "a/b.safetensors", "y.bin", ""}) {
    testing::WriteAll(path, R"({"weight_map":{"bad":")" + file + R"("}})");
    try {
      CheckpointFile::Open(path);
      FAIL() << file;
    } catch (const FileError& error) {
      EXPECT_NE(std::string(error.what()).find("'bad'"), std::string::npos) << error.what();
    }
  }
  for (const std::string text :
       {"", "{}", "[]", R"({"weight_map":[]})", R"({"weight_map":{"a":1}})"}) {
    testing::WriteAll(path, text);
    EXPECT_THROW(CheckpointFile::Open(path), FileError) << text;
  }
}

TEST(Hostile, WhatIsNoFileIsRefused) {
  const testing::TemporaryFolder folder;
  EXPECT_THROW(CheckpointFile::Open(folder / "none.safetensors"), FileError);
  EXPECT_THROW(CheckpointFile::Open(folder.path().string()), FileError);
  testing::WriteAll(folder / "empty.safetensors", "");
  EXPECT_THROW(CheckpointFile::Open(folder / "empty.safetensors"), FileError);
}

}  // namespace
}  // namespace flashoptim

#include "checkpoint/header.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <tuple>

#include "checkpoint/dtypes.h"
#include "checkpoint/strict_json.h"

namespace flashoptim::checkpoint {
namespace {

using nlohmann::json;

constexpr const char* kMetadataName = "__metadata__";
constexpr JsonLimits kLimits{.depth = 3, .inner_values = 64};
constexpr const char* kRemedy = "; the file is damaged or no safetensors file: fetch it again";

struct Entry {
  FileTensor tensor;
  std::uint64_t begin;
  std::uint64_t end;
};

Metadata ReadMetadata(const json& value, const std::string& file) {
  if (!value.is_object()) throw FileError(file + ": __metadata__ is not an object" + kRemedy);
  Metadata metadata;
  for (const auto& [name, text] : value.items()) {
    if (!text.is_string()) {
      throw FileError(file + ": the metadata " + Quoted(name) + " is not a text" + kRemedy);
    }
    metadata.emplace(name, text.get<std::string>());
  }
  return metadata;
}

std::vector<std::uint64_t> Numbers(const json& value, const std::string& tensor, const char* key) {
  std::vector<std::uint64_t> numbers;
  if (!value.is_array()) throw FileError(tensor + key + " is not a list" + kRemedy);
  for (const json& number : value) {
    if (!number.is_number_unsigned()) {
      throw FileError(tensor + key + " holds " + Quoted(number.dump().substr(0, 40)) +
                      ", which is no whole number below 2^64" + kRemedy);
    }
    numbers.push_back(number.get<std::uint64_t>());
  }
  return numbers;
}

Entry ReadEntry(const std::string& name, const json& value, const std::string& file) {
  const std::string tensor = file + ": tensor " + Quoted(name) + ": ";
  if (name.find('\0') != std::string::npos) {
    throw FileError(tensor + "its name holds a NUL character; rename it");
  }
  if (!value.is_object() || value.size() != 3 || !value.contains("dtype") ||
      !value.contains("shape") || !value.contains("data_offsets")) {
    throw FileError(tensor + "its entry must have dtype, shape and data_offsets and nothing else" +
                    kRemedy);
  }
  const json& dtype_name = value["dtype"];
  const auto dtype = DTypeOf(dtype_name.is_string() ? dtype_name.get<std::string>() : "");
  if (!dtype) {
    throw FileError(tensor + "the dtype " + Quoted(dtype_name.dump()) +
                    " is not known; convert the tensor to another one");
  }
  Entry entry{{name, *dtype, Numbers(value["shape"], tensor, "shape"), {}}, 0, 0};
  const auto offsets = Numbers(value["data_offsets"], tensor, "data_offsets");
  if (offsets.size() != 2 || offsets[0] > offsets[1]) {
    throw FileError(tensor + "data_offsets are not a begin and an end" + kRemedy);
  }
  entry.begin = offsets[0];
  entry.end = offsets[1];
  const std::optional<std::uint64_t> bytes = BytesNeeded(entry.tensor);
  if (bytes != entry.end - entry.begin) {
    throw FileError(tensor + "data_offsets span " + std::to_string(entry.end - entry.begin) +
                    " bytes, and its dtype and shape need " +
                    (bytes ? std::to_string(*bytes) : "more than 2^64") + kRemedy);
  }
  return entry;
}

}  // namespace

std::optional<std::uint64_t> BytesNeeded(const FileTensor& tensor) {
  std::uint64_t bytes = BytesOf(tensor.dtype);
  for (const std::uint64_t size : tensor.shape) {
    if (__builtin_mul_overflow(bytes, size, &bytes)) return std::nullopt;
  }
  return bytes;
}

std::uint64_t HeaderLength(std::span<const std::byte> first, const std::string& file,
                           std::uint64_t limit) {
  if (first.size() < kLengthBytes) {
    throw FileError(file + " has " + std::to_string(first.size()) +
                    " bytes and is no safetensors file; fetch it again");
  }
  std::uint64_t length = 0;
  for (std::size_t i = 0; i < kLengthBytes; ++i) {
    length |= std::to_integer<std::uint64_t>(first[i]) << (8 * i);
  }
  if (length > limit) {
    throw FileError(file + ": its header claims " + std::to_string(length) +
                    " bytes, above the limit of " + std::to_string(limit) + kRemedy);
  }
  return length;
}

Header ParseHeader(std::string_view text, const std::string& file) {
  const json parsed = ParseObject(text, file + ": its header", kLimits);
  Header header;
  std::vector<Entry> entries;
  entries.reserve(parsed.size());
  for (const auto& [name, value] : parsed.items()) {
    if (name == kMetadataName) {
      header.metadata = ReadMetadata(value, file);
    } else {
      entries.push_back(ReadEntry(name, value, file));
    }
  }
  std::sort(entries.begin(), entries.end(), [](const Entry& a, const Entry& b) {
    return std::tie(a.begin, a.end, a.tensor.name) < std::tie(b.begin, b.end, b.tensor.name);
  });
  std::uint64_t expected = 0;
  for (Entry& entry : entries) {
    if (entry.begin != expected) {
      throw FileError(file + ": tensor " + Quoted(entry.tensor.name) + ": its data begin at byte " +
                      std::to_string(entry.begin) + ", and the tensor before it ends at " +
                      std::to_string(expected) +
                      (entry.begin < expected ? ": they overlap" : ": there is a hole") + kRemedy);
    }
    expected = entry.end;
    header.data_ends.push_back(entry.end);
    header.tensors.push_back(std::move(entry.tensor));
  }
  return header;
}

std::string HeaderBytes(std::span<const FileTensor> tensors, const Metadata& metadata) {
  json header = json::object();
  if (!metadata.empty()) header[kMetadataName] = metadata;
  std::uint64_t at = 0;
  for (const FileTensor& tensor : tensors) {
    const std::uint64_t end = at + tensor.data.size();
    header[tensor.name] = {
        {"dtype", NameOf(tensor.dtype)}, {"shape", tensor.shape}, {"data_offsets", {at, end}}};
    at = end;
  }
  std::string text = header.dump();
  text.append((kLengthBytes - text.size() % kLengthBytes) % kLengthBytes, ' ');
  std::string bytes;
  for (std::size_t i = 0; i < kLengthBytes; ++i) {
    bytes += static_cast<char>(text.size() >> (8 * i) & 0xff);
  }
  return bytes + text;
}

}  // namespace flashoptim::checkpoint

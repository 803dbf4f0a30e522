#include "checkpoint/index.h"

#include "checkpoint/checksums.h"
#include "checkpoint/strict_json.h"

namespace flashoptim::checkpoint {
namespace {

using nlohmann::json;

constexpr const char* kRemedy = "; the index is damaged: fetch it and its shards again";

}  // namespace

Index ParseIndex(std::string_view text, const std::string& file) {
  const json parsed = ParseObject(text, file, JsonLimits{});
  Index index;
  const auto map = parsed.find("weight_map");
  if (map == parsed.end() || !map->is_object()) {
    throw FileError(file + " has no weight_map" + kRemedy);
  }
  for (const auto& [tensor, value] : map->items()) {
    const std::string name = value.is_string() ? value.get<std::string>() : "";
    if (name.find_first_of(std::string_view("/\0", 2)) != std::string::npos ||
        !name.ends_with(kFileEnding)) {
      throw FileError(file + ": tensor " + Quoted(tensor) + " is said to be in " +
                      Quoted(value.dump()) + ", which is no safetensors file of this folder" +
                      kRemedy);
    }
    index.file_of.emplace(tensor, name);
  }
  const auto metadata = parsed.find("metadata");
  if (metadata != parsed.end() && metadata->is_object() && metadata->contains(kSetSum)) {
    const json& sum = (*metadata)[kSetSum];
    if (!sum.is_string()) throw FileError(file + ": " + kSetSum + " is not a text" + kRemedy);
    index.set_sum = sum.get<std::string>();
  }
  return index;
}

std::string IndexText(const Index& index, std::uint64_t total_bytes) {
  const json text = {{"metadata", {{"total_size", total_bytes}, {kSetSum, index.set_sum}}},
                     {"weight_map", index.file_of}};
  return text.dump(2) + "\n";
}

}  // namespace flashoptim::checkpoint

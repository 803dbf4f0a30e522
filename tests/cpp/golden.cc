#include "golden.h"

#include <bit>
#include <fstream>
#include <stdexcept>

namespace flashoptim::testing {

nlohmann::json LoadGolden(const std::string& name) {
  const std::string path = std::string(FLASHOPTIM_GOLDEN_DIR) + "/" + name + ".json";
  std::ifstream file(path);
  if (!file) throw std::runtime_error("cannot read " + path);
  return nlohmann::json::parse(file);
}

std::vector<std::uint32_t> Words(const nlohmann::json& column, unsigned digits) {
  const auto text = column.get<std::string>();
  if (text.size() % digits != 0) throw std::runtime_error("odd length of a golden column");
  std::vector<std::uint32_t> words;
  words.reserve(text.size() / digits);
  for (std::size_t i = 0; i < text.size(); i += digits) {
    words.push_back(static_cast<std::uint32_t>(std::stoul(text.substr(i, digits), nullptr, 16)));
  }
  return words;
}

std::uint64_t Number(const nlohmann::json& word) {
  return std::stoull(word.get<std::string>(), nullptr, 16);
}

std::vector<float> Floats(const nlohmann::json& column) {
  std::vector<float> floats;
  for (const std::uint32_t image : Words(column, 8)) floats.push_back(std::bit_cast<float>(image));
  return floats;
}

}  // namespace flashoptim::testing

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

Rule RuleOf(const nlohmann::json& hyper) {
  const auto rule = hyper.at("rule").get<std::string>();
  if (rule == "lion") return Rule::kLion;
  return rule == "adam" || rule == "adamw" ? Rule::kAdam : Rule::kSgd;
}

Hyperparameters HyperparametersOf(const nlohmann::json& hyper) {
  const auto rule = hyper.at("rule").get<std::string>();
  Hyperparameters h;
  h.lr = hyper.at("lr").get<double>();
  h.beta1 = hyper.value("beta1", 0.0);
  h.beta2 = hyper.value("beta2", 0.0);
  h.eps = hyper.value("eps", 0.0);
  h.momentum = hyper.value("momentum", 0.0);
  h.dampening = hyper.value("dampening", 0.0);
  h.nesterov = hyper.value("nesterov", false);
  h.maximize = hyper.value("gamma", 1.0) < 0.0;
  h.weight_decay = hyper.value("weight_decay", 0.0);
  h.initial_lr = hyper.value("initial_lr", 0.0);
  if (rule == "sgd" || rule == "adam") {
    h.weight_decay_kind = WeightDecay::kCoupled;
  } else {
    h.weight_decay_kind =
        hyper.contains("initial_lr") ? WeightDecay::kFullyDecoupled : WeightDecay::kDecoupled;
  }
  return h;
}

}  // namespace flashoptim::testing

// The description of an optimizer as JSON (docs/format.md, section 11).
#include <array>
#include <cmath>
#include <set>
#include <utility>

#include "checkpoint/strict_json.h"
#include "flashoptim/state_file.h"

namespace flashoptim {
namespace {

using checkpoint::Quoted;
using nlohmann::json;

template <class T>
struct Name {
  T value;
  const char* text;
};

constexpr std::array<Name<Rule>, 3> kRules{
    {{Rule::kSgd, "sgd"}, {Rule::kAdam, "adam"}, {Rule::kLion, "lion"}}};
constexpr std::array<Name<Codec>, 3> kCodecs{
    {{Codec::kNone, "none"}, {Codec::kRoot, "root"}, {Codec::kSoftsign, "softsign"}}};
constexpr std::array<Name<WeightDecay>, 3> kDecays{
    {{WeightDecay::kCoupled, "coupled"},
     {WeightDecay::kDecoupled, "decoupled"},
     {WeightDecay::kFullyDecoupled, "fully_decoupled"}}};
constexpr std::array<Name<Nonfinite>, 3> kPolicies{{{Nonfinite::kPropagate, "propagate"},
                                                    {Nonfinite::kSkip, "skip"},
                                                    {Nonfinite::kError, "error"}}};

constexpr const char* kRemedy = "; the file was not written by flashoptim or is damaged";

// Reads the entries of one object and knows afterwards which were not asked for.
class Entries {
 public:
  Entries(const json& object, std::string where) : object_(object), where_(std::move(where)) {
    if (!object.is_object()) throw FileError(where_ + " is not an object" + kRemedy);
  }

  const json& Required(const char* name) {
    known_.insert(name);
    const auto found = object_.find(name);
    if (found == object_.end()) throw FileError(where_ + " lacks " + Quoted(name) + kRemedy);
    return *found;
  }

  double Number(const char* name) {
    const json& value = Required(name);
    if (!value.is_number()) Refuse(name, value, "a number");
    return value.get<double>();
  }

  bool Switch(const char* name) {
    const json& value = Required(name);
    if (!value.is_boolean()) Refuse(name, value, "true or false");
    return value.get<bool>();
  }

  std::uint64_t Whole(const char* name) {
    const json& value = Required(name);
    if (!value.is_number_unsigned()) Refuse(name, value, "a whole number below 2^64");
    return value.get<std::uint64_t>();
  }

  template <class T, std::size_t N>
  T Choice(const char* name, const std::array<Name<T>, N>& choices) {
    const json& value = Required(name);
    std::string known;
    for (const auto& choice : choices) {
      if (value.is_string() && value.get<std::string>() == choice.text) return choice.value;
      known += (known.empty() ? "" : ", ") + std::string(choice.text);
    }
    Refuse(name, value, "one of " + known);
  }

  [[noreturn]] void Refuse(const char* name, const json& value, const std::string& wanted) const {
    throw FileError(where_ + ": " + name + " must be " + wanted + ", not " +
                    Quoted(value.dump(-1, ' ', false, json::error_handler_t::replace)) + kRemedy);
  }

  void NothingElse() const {
    for (const auto& [name, value] : object_.items()) {
      if (!known_.contains(name)) {
        throw FileError(where_ + " has the unknown entry " + Quoted(name) + kRemedy);
      }
    }
  }

 private:
  const json& object_;
  std::string where_;
  std::set<std::string> known_;
};

template <class T, std::size_t N>
const char* TextOf(T value, const std::array<Name<T>, N>& choices) {
  for (const auto& choice : choices) {
    if (choice.value == value) return choice.text;
  }
  throw FileError("an option has a value that has no name");
}

StateGroup ReadGroup(const json& value, const std::string& where) {
  Entries entries(value, where);
  StateGroup group;
  Hyperparameters& h = group.hyperparameters;
  h.lr = entries.Number("lr");
  h.initial_lr = entries.Number("initial_lr");
  const json& betas = entries.Required("betas");
  if (!betas.is_array() || betas.size() != 2 || !betas[0].is_number() || !betas[1].is_number()) {
    entries.Refuse("betas", betas, "two numbers");
  }
  h.beta1 = betas[0].get<double>();
  h.beta2 = betas[1].get<double>();
  h.eps = entries.Number("eps");
  h.momentum = entries.Number("momentum");
  h.dampening = entries.Number("dampening");
  h.weight_decay = entries.Number("weight_decay");
  h.weight_decay_kind = entries.Choice("weight_decay_kind", kDecays);
  h.nesterov = entries.Switch("nesterov");
  h.maximize = entries.Switch("maximize");
  h.stochastic_rounding = entries.Switch("stochastic_rounding");
  h.nonfinite = entries.Choice("nonfinite", kPolicies);
  h.seed = entries.Whole("seed");
  group.kept.codec = entries.Choice("codec", kCodecs);
  const std::uint64_t bits = entries.Whole("master_weight_bits");
  if (bits != 16 && bits != 24 && bits != 32) {
    entries.Refuse("master_weight_bits", json(bits), "16, 24 or 32");
  }
  group.kept.master_weight_bits = static_cast<std::int32_t>(bits);
  group.kept.momentum = h.momentum != 0.0;
  group.kept.amsgrad = entries.Switch("amsgrad");
  const json& parameters = entries.Required("parameters");
  if (!parameters.is_array()) entries.Refuse("parameters", parameters, "a list of names");
  for (const json& name : parameters) {
    if (!name.is_string()) entries.Refuse("parameters", name, "names");
    group.parameters.push_back(name.get<std::string>());
  }
  entries.NothingElse();
  return group;
}

json GroupToJson(const StateGroup& group) {
  const Hyperparameters& h = group.hyperparameters;
  return {{"lr", h.lr},
          {"initial_lr", h.initial_lr},
          {"betas", {h.beta1, h.beta2}},
          {"eps", h.eps},
          {"momentum", h.momentum},
          {"dampening", h.dampening},
          {"weight_decay", h.weight_decay},
          {"weight_decay_kind", TextOf(h.weight_decay_kind, kDecays)},
          {"nesterov", h.nesterov},
          {"maximize", h.maximize},
          {"stochastic_rounding", h.stochastic_rounding},
          {"nonfinite", TextOf(h.nonfinite, kPolicies)},
          {"seed", h.seed},
          {"codec", TextOf(group.kept.codec, kCodecs)},
          {"master_weight_bits", group.kept.master_weight_bits},
          {"amsgrad", group.kept.amsgrad},
          {"parameters", group.parameters}};
}

std::vector<std::uint32_t> ReadOrder(const std::string& name, const json& value) {
  std::vector<std::uint32_t> order;
  bool valid = value.is_array();
  std::set<std::uint64_t> seen;
  for (const json& number : value) {
    const bool fits = number.is_number_unsigned() && number.get<std::uint64_t>() < value.size();
    valid = valid && fits && seen.insert(number.get<std::uint64_t>()).second;
    if (valid) order.push_back(number.get<std::uint32_t>());
  }
  if (!valid) {
    throw FileError("parameter " + Quoted(name) +
                    ": its memory_order is not an order of dimensions" + kRemedy);
  }
  return order;
}

}  // namespace

std::string OptionsToText(const StateDescription& description) {
  json groups = json::array();
  for (const StateGroup& group : description.groups) groups.push_back(GroupToJson(group));
  const json text = {{"rule", TextOf(description.rule, kRules)},
                     {"groups", groups},
                     {"memory_order", description.memory_order}};
  try {
    return text.dump();
  } catch (const json::exception&) {
    throw FileError("the name of a parameter is not UTF-8; rename it");
  }
}

StateDescription OptionsFromText(std::string_view text) {
  const json parsed = checkpoint::ParseObject(text, kOptionsKey, {});
  Entries entries(parsed, kOptionsKey);
  StateDescription description;
  description.rule = entries.Choice("rule", kRules);
  const json& groups = entries.Required("groups");
  if (!groups.is_array()) entries.Refuse("groups", groups, "a list");
  std::set<std::string> names;
  for (std::size_t i = 0; i < groups.size(); ++i) {
    description.groups.push_back(ReadGroup(groups[i], "parameter group " + std::to_string(i)));
    for (const std::string& name : description.groups.back().parameters) {
      if (!names.insert(name).second) {
        throw FileError("parameter " + Quoted(name) + " is in two groups" + kRemedy);
      }
    }
  }
  const json& orders = entries.Required("memory_order");
  if (!orders.is_object()) entries.Refuse("memory_order", orders, "an object");
  for (const auto& [name, order] : orders.items()) {
    if (!names.contains(name)) {
      throw FileError("memory_order names " + Quoted(name) + ", which is in no group" + kRemedy);
    }
    description.memory_order.emplace(name, ReadOrder(name, order));
  }
  entries.NothingElse();
  return description;
}

std::string_view NameOf(Codec codec) { return TextOf(codec, kCodecs); }

}  // namespace flashoptim

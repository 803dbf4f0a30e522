// State and options in the archives of torch::save and torch::load.
#include <ATen/core/grad_mode.h>
#include <ATen/core/ivalue.h>
#include <torch/serialize/input-archive.h>
#include <torch/serialize/output-archive.h>

#include <bit>
#include <stdexcept>
#include <string>
#include <type_traits>

#include "flashoptim/runtime.h"
#include "flashoptim/torch_adapter.h"
#include "plan.h"
#include "tensors.h"

namespace flashoptim {
namespace {

using torch::serialize::InputArchive;
using torch::serialize::OutputArchive;

constexpr const char* kFormatKey = "flashoptim_format";
constexpr const char* kVersionKey = "flashoptim_version";
constexpr const char* kOptimizerKey = "optimizer";
constexpr const char* kSizesKey = "group_sizes";
constexpr const char* kOptionsKey = "options";
constexpr const char* kStateKey = "state";

[[noreturn]] void Refuse(const std::string& why) {
  throw std::invalid_argument("the archive cannot be loaded: " + why);
}

// Calls visit(name, member) for every option that the struct has.
template <class Native, class Visit>
void ForEachOption(Native& options, const Visit& visit) {
  visit("lr", options.lr);
  visit("weight_decay", options.weight_decay);
  visit("maximize", options.maximize);
  if constexpr (requires { options.momentum; }) {
    visit("momentum", options.momentum);
    visit("dampening", options.dampening);
    visit("nesterov", options.nesterov);
  }
  if constexpr (requires { options.beta1; }) {
    visit("beta1", options.beta1);
    visit("beta2", options.beta2);
  }
  if constexpr (requires { options.eps; }) {
    visit("eps", options.eps);
    visit("amsgrad", options.amsgrad);
  }
  visit("initial_lr", options.initial_lr);
  if constexpr (requires { options.decouple_lr; }) visit("decouple_lr", options.decouple_lr);
  visit("quantize", options.storage.quantize);
  visit("codec", options.storage.codec);
  visit("master_weight_bits", options.storage.master_weight_bits);
  visit("stochastic_rounding", options.storage.stochastic_rounding);
  visit("nonfinite", options.storage.nonfinite);
  visit("seed", options.storage.seed);
}

template <class T>
c10::IValue ToIValue(const T& value) {
  if constexpr (std::is_enum_v<T> || (std::is_integral_v<T> && !std::is_same_v<T, bool>)) {
    return static_cast<std::int64_t>(value);
  } else {
    return value;
  }
}

template <class T>
constexpr T kLargest{};
template <>
constexpr Codec kLargest<Codec> = Codec::kSoftsign;
template <>
constexpr Nonfinite kLargest<Nonfinite> = Nonfinite::kError;

// Whether the archive's value is of the option's type; takes it over.
template <class T>
bool FromIValue(const c10::IValue& value, T& option) {
  if constexpr (std::is_same_v<T, bool>) {
    if (!value.isBool()) return false;
    option = value.toBool();
  } else if constexpr (std::is_same_v<T, std::optional<double>>) {
    if (!value.isNone() && !value.isDouble()) return false;
    option = value.isNone() ? T() : T(value.toDouble());
  } else if constexpr (std::is_same_v<T, double>) {
    if (!value.isDouble()) return false;
    option = value.toDouble();
  } else {
    if (!value.isInt()) return false;
    if constexpr (std::is_enum_v<T>) {
      if (value.toInt() < 0 || value.toInt() > static_cast<std::int64_t>(kLargest<T>)) return false;
    }
    option = static_cast<T>(value.toInt());
  }
  return true;
}

c10::IValue Read(InputArchive& archive, const std::string& key) {
  c10::IValue value;
  if (!archive.try_read(key, value)) Refuse("it has no '" + key + "'");
  return value;
}

InputArchive ReadArchive(InputArchive& archive, const std::string& key) {
  InputArchive nested;
  if (!archive.try_read(key, nested)) Refuse("it has no '" + key + "'");
  return nested;
}

// Throws unless an optimizer of this class and format wrote it.
void CheckOrigin(InputArchive& archive, const std::string& optimizer) {
  c10::IValue format;
  if (!archive.try_read(kFormatKey, format) || !format.isInt()) {
    Refuse(std::string("it is not of an optimizer of flashoptim (no '") + kFormatKey +
           "'); save one with torch::save(optimizer, path)");
  }
  if (format.toInt() != kFormatVersion) {
    Refuse("its format is " + std::to_string(format.toInt()) + ", and this library (" + Version() +
           ") reads format " + std::to_string(kFormatVersion));
  }
  const c10::IValue name = Read(archive, kOptimizerKey);
  if (!name.isString() || name.toStringRef() != optimizer) {
    Refuse("it is of Flash" + (name.isString() ? name.toStringRef() : "?") +
           ", and this optimizer is Flash" + optimizer);
  }
}

std::vector<std::int64_t> GroupSizes(const std::vector<torch::optim::OptimizerParamGroup>& groups) {
  std::vector<std::int64_t> sizes;
  sizes.reserve(groups.size());
  for (const auto& group : groups)
    sizes.push_back(static_cast<std::int64_t>(group.params().size()));
  return sizes;
}

StorageOptions& StorageOf(Options& options) {
  return std::visit([](auto& chosen) -> StorageOptions& { return chosen.storage; }, options);
}

// How state is kept stays as it is, and must be the archive's.
void KeepStorage(const Options& own, Options& read, std::size_t group) {
  Options mine = own;
  const StorageOptions& kept = StorageOf(mine);
  StorageOptions& saved = StorageOf(read);
  const auto codec = [](const StorageOptions& s) { return s.quantize ? s.codec : Codec::kNone; };
  if (codec(kept) != codec(saved) || kept.master_weight_bits != saved.master_weight_bits) {
    Refuse("in parameter group " + std::to_string(group) +
           " quantize, codec or master_weight_bits differ from the optimizer's; make the optimizer "
           "with those of the archive");
  }
  saved.quantize = kept.quantize;
  saved.codec = kept.codec;
}

// The state of one parameter, on its device and in its memory order.
std::unique_ptr<FlashParamState> ReadState(InputArchive& archive, const Options& options,
                                           const Parameter& parameter) {
  FlashParamState saved;
  saved.serialize(archive);
  FlashParamState::Tensors tensors;
  const std::vector<ParameterGroup> alone = {{options, {parameter}}};
  const std::vector<StateEntry> layout = StateLayout(alone);
  const std::string misfit = Misfit(saved, layout);
  if (!misfit.empty()) Refuse(parameter.name + ": its state " + misfit);
  for (const StateEntry& entry : layout) {
    tensors.emplace_back(entry.name, Place(saved.tensor(entry.name), entry));
  }
  return std::make_unique<FlashParamState>(std::move(tensors));
}

}  // namespace

void FlashOptions::Write(OutputArchive& archive, const Options& options) {
  std::visit(
      [&archive](const auto& chosen) {
        ForEachOption(chosen, [&archive](const char* name, const auto& value) {
          archive.write(name, ToIValue(value));
        });
      },
      options);
}

void FlashOptions::Read(InputArchive& archive, Options& options) {
  std::visit(
      [&archive](auto& chosen) {
        ForEachOption(chosen, [&archive](const char* name, auto& value) {
          if (!FromIValue(flashoptim::Read(archive, name), value)) {
            Refuse(std::string("the option '") + name + "' has no value of its type");
          }
        });
      },
      options);
}

void FlashParamState::serialize(OutputArchive& archive) const {
  for (const auto& [name, tensor] : tensors_) archive.write(name, tensor, /*is_buffer=*/true);
}

void FlashParamState::serialize(InputArchive& archive) {
  Tensors read;
  for (const std::string& name : archive.keys()) {
    torch::Tensor tensor;
    if (!archive.try_read(name, tensor, /*is_buffer=*/true)) {
      Refuse("'" + name + "' in a parameter's state is no tensor");
    }
    read.emplace_back(name, std::move(tensor));
  }
  tensors_ = std::move(read);
}

void FlashOptimizer::save(OutputArchive& archive) const {
  archive.write(kFormatKey, c10::IValue(std::int64_t{kFormatVersion}));
  archive.write(kVersionKey, c10::IValue(std::string(Version())));
  archive.write(kOptimizerKey,
                c10::IValue(NameOf(dynamic_cast<const FlashOptions&>(*defaults_).native())));
  archive.write(kSizesKey, c10::IValue(GroupSizes(param_groups_)));
  OutputArchive options(archive.compilation_unit());
  OutputArchive states(archive.compilation_unit());
  std::size_t place = 0;
  for (std::size_t g = 0; g < param_groups_.size(); ++g) {
    OutputArchive group(archive.compilation_unit());
    param_groups_[g].options().serialize(group);
    options.write(std::to_string(g), group);
    for (const torch::Tensor& parameter : param_groups_[g].params()) {
      const auto found = state_.find(parameter.unsafeGetTensorImpl());
      if (found != state_.end()) {
        OutputArchive state(archive.compilation_unit());
        found->second->serialize(state);
        states.write(std::to_string(place), state);
      }
      ++place;
    }
  }
  archive.write(kOptionsKey, options);
  archive.write(kStateKey, states);
}

void FlashOptimizer::load(InputArchive& archive) {
  const at::NoGradGuard no_grad;
  CheckOrigin(archive, NameOf(dynamic_cast<const FlashOptions&>(*defaults_).native()));
  const c10::IValue sizes = Read(archive, kSizesKey);
  if (!sizes.isIntList() || sizes.toIntVector() != GroupSizes(param_groups_)) {
    Refuse("its groups have other numbers of parameters than the optimizer's");
  }
  std::vector<Options> options = GroupOptions();
  InputArchive saved_options = ReadArchive(archive, kOptionsKey);
  for (std::size_t g = 0; g < options.size(); ++g) {
    InputArchive group = ReadArchive(saved_options, std::to_string(g));
    const auto read = param_groups_[g].options().clone();
    read->serialize(group);
    Options saved = dynamic_cast<const FlashOptions&>(*read).native();
    KeepStorage(options[g], saved, g);
    options[g] = saved;
  }
  InputArchive saved_states = ReadArchive(archive, kStateKey);
  StateMap states;
  std::size_t place = 0;
  for (std::size_t g = 0; g < options.size(); ++g) {
    const std::vector<torch::Tensor>& parameters = param_groups_[g].params();
    for (std::size_t i = 0; i < parameters.size(); ++i, ++place) {
      InputArchive saved;
      if (!saved_states.try_read(std::to_string(place), saved)) continue;
      states[parameters[i].unsafeGetTensorImpl()] =
          ReadState(saved, options[g], Describe(parameters[i], ParameterName(g, i)));
    }
  }
  if (states.size() != saved_states.keys().size()) {
    Refuse("it has states of parameters that the optimizer does not have");
  }
  std::unique_ptr<Plan> plan = MakePlan(options, states);
  plan->GiveStates(states);
  for (std::size_t g = 0; g < options.size(); ++g)
    OptionsOf(param_groups_[g], g).set_native(options[g]);
  state_ = std::move(states);
  plan_ = std::move(plan);
}

}  // namespace flashoptim

// Options that files hold, as the structs that optimizers are made with.
#include <stdexcept>

#include "flashoptim/optimizer_file.h"
#include "flashoptim/state_file.h"

namespace flashoptim {
namespace {

template <class T>
Options OptionsOfGroup(const StateGroup& group) {
  const Hyperparameters& h = group.hyperparameters;
  T options;
  options.lr = h.lr;
  options.initial_lr = h.initial_lr;
  options.weight_decay = h.weight_decay;
  options.maximize = h.maximize;
  if constexpr (requires { options.beta1; }) {
    options.beta1 = h.beta1;
    options.beta2 = h.beta2;
  }
  if constexpr (requires { options.eps; }) {
    options.eps = h.eps;
    options.amsgrad = group.kept.amsgrad;
  }
  if constexpr (requires { options.momentum; }) {
    options.momentum = h.momentum;
    options.dampening = h.dampening;
    options.nesterov = h.nesterov;
  }
  if constexpr (requires { options.decouple_lr; }) {
    options.decouple_lr = h.weight_decay_kind == WeightDecay::kFullyDecoupled;
  }
  StorageOptions& storage = options.storage;
  storage.quantize = group.kept.codec != Codec::kNone;
  if (storage.quantize) storage.codec = group.kept.codec;
  storage.master_weight_bits = group.kept.master_weight_bits;
  storage.stochastic_rounding = h.stochastic_rounding;
  storage.nonfinite = h.nonfinite;
  storage.seed = h.seed;
  return options;
}

Options OptionsOfGroup(Rule rule, const StateGroup& group, const std::string& path) {
  const bool coupled = group.hyperparameters.weight_decay_kind == WeightDecay::kCoupled;
  switch (rule) {
    case Rule::kSgd:
      return coupled ? OptionsOfGroup<SgdOptions>(group) : OptionsOfGroup<SgdwOptions>(group);
    case Rule::kAdam:
      return coupled ? OptionsOfGroup<AdamOptions>(group) : OptionsOfGroup<AdamWOptions>(group);
    case Rule::kLion:
      break;
  }
  if (coupled) {
    throw FileError(path +
                    ": its weight decay is coupled, which Lion does not have; the file was "
                    "not written by flashoptim");
  }
  return OptionsOfGroup<LionOptions>(group);
}

}  // namespace

std::vector<Options> SavedOptions(const std::string& path) {
  ReadOptions read;
  read.verify = false;  // of tensors; the metadata always are
  const CheckpointFile file = CheckpointFile::Open(path, read);
  const auto state = ReadOptimizerState(file);
  if (!state) {
    throw FileError(path + ": it has no optimizer state (no " + std::string(kOptionsKey) +
                    "); save one with SaveOptimizer");
  }
  std::vector<Options> options;
  for (const StateGroup& group : state->description.groups) {
    options.push_back(OptionsOfGroup(state->description.rule, group, path));
  }
  return options;
}

void LoadOptions(Optimizer& optimizer, const std::string& path) {
  const std::vector<Options> saved = SavedOptions(path);
  if (saved.size() != optimizer.groups()) {
    throw FileError(path + ": it has " + std::to_string(saved.size()) +
                    " parameter groups, and the optimizer " + std::to_string(optimizer.groups()) +
                    "; load it into an optimizer made like the one that was saved");
  }
  std::vector<Options> before;
  before.reserve(saved.size());
  for (std::size_t g = 0; g < saved.size(); ++g) before.push_back(optimizer.options(g));
  try {
    for (std::size_t g = 0; g < saved.size(); ++g) optimizer.SetOptions(g, saved[g]);
  } catch (const std::invalid_argument& error) {
    for (std::size_t g = 0; g < saved.size(); ++g) optimizer.SetOptions(g, before[g]);
    throw FileError(path + ": " + error.what());
  }
}

}  // namespace flashoptim

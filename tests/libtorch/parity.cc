// Trains as a case file says and writes every byte that is left, for parity.py beside it, which
// does the same with the Python package. A case is a sequence of words:
//
//   optimizer NAME  device DEVICE  seed N  steps N  decay EVERY FACTOR  save_at N
//   group  option NAME VALUE ...  parameter DTYPE ABSENT DIMENSIONS SIZE ...
//
// `decay` is torch::optim::StepLR; at `save_at` the optimizer is saved and another one goes on; a
// parameter has no gradient in the steps whose number divided by ABSENT (above 0) leaves 1.
#include <flashoptim/torch_adapter.h>
#include <torch/optim/schedulers/step_lr.h>
#include <torch/serialize.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <cstdint>
#include <exception>
#include <fstream>
#include <iostream>
#include <map>
#include <memory>
#include <sstream>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

namespace {

struct Parameter {
  torch::Tensor weight;
  torch::Tensor target;
  std::int64_t absent = 0;
};

struct Group {
  std::map<std::string, double> options;
  std::vector<std::size_t> parameters;
};

struct Case {
  std::string optimizer;
  torch::Device device = torch::kCPU;
  std::uint64_t seed = 0;
  std::int64_t steps = 0;
  unsigned decay_every = 1;
  double decay = 1.0;
  std::int64_t save_at = -1;
  std::vector<Group> groups;
  std::vector<Parameter> parameters;
};

torch::ScalarType DTypeOf(const std::string& name) {
  if (name == "bfloat16") return torch::kBFloat16;
  if (name == "float16") return torch::kHalf;
  if (name == "float32") return torch::kFloat;
  throw std::invalid_argument("unknown dtype " + name);
}

// Drawn on the CPU, so that it is the same for every device.
torch::Tensor Random(const std::vector<std::int64_t>& shape, torch::Device device) {
  return torch::randn(shape).to(device);
}

Case ReadCase(const std::string& path) {
  std::ifstream file(path);
  Case read;
  std::string word;
  while (file >> word) {
    if (word == "optimizer") {
      file >> read.optimizer;
    } else if (word == "device") {
      file >> word;
      read.device = torch::Device(word);
    } else if (word == "seed") {
      file >> read.seed;
      torch::manual_seed(read.seed);
    } else if (word == "steps") {
      file >> read.steps;
    } else if (word == "decay") {
      file >> read.decay_every >> read.decay;
    } else if (word == "save_at") {
      file >> read.save_at;
    } else if (word == "group") {
      read.groups.emplace_back();
    } else if (word == "option") {
      file >> word;
      file >> read.groups.back().options[word];
    } else if (word == "parameter") {
      Parameter parameter;
      std::size_t dimensions = 0;
      file >> word >> parameter.absent >> dimensions;
      std::vector<std::int64_t> shape(dimensions);
      for (std::int64_t& size : shape) file >> size;
      parameter.weight = Random(shape, read.device).to(DTypeOf(word)).requires_grad_(true);
      parameter.target = Random(shape, read.device);
      read.groups.back().parameters.push_back(read.parameters.size());
      read.parameters.push_back(parameter);
    } else {
      throw std::invalid_argument("unknown word " + word);
    }
  }
  return read;
}

template <class Native>
void Set(Native& options, const std::string& wanted, double value) {
  bool found = false;
  const auto set = [&](const char* name, auto& option) {
    if (wanted != name) return;
    option = static_cast<std::remove_reference_t<decltype(option)>>(value);
    found = true;
  };
  set("lr", options.lr);
  set("weight_decay", options.weight_decay);
  set("maximize", options.maximize);
  if constexpr (requires { options.momentum; }) {
    set("momentum", options.momentum);
    set("dampening", options.dampening);
    set("nesterov", options.nesterov);
  }
  if constexpr (requires { options.beta1; }) {
    set("beta1", options.beta1);
    set("beta2", options.beta2);
  }
  if constexpr (requires { options.eps; }) {
    set("eps", options.eps);
    set("amsgrad", options.amsgrad);
  }
  if constexpr (requires { options.decouple_lr; }) set("decouple_lr", options.decouple_lr);
  set("quantize", options.storage.quantize);
  set("master_weight_bits", options.storage.master_weight_bits);
  set("stochastic_rounding", options.storage.stochastic_rounding);
  set("seed", options.storage.seed);
  if (wanted == "softsign") {
    options.storage.codec = flashoptim::Codec::kSoftsign;
  } else if (!found) {
    throw std::invalid_argument("unknown option " + wanted);
  }
}

template <class Optimizer, class Options>
std::unique_ptr<flashoptim::FlashOptimizer> Make(const Case& read) {
  std::vector<torch::optim::OptimizerParamGroup> groups;
  for (const Group& group : read.groups) {
    auto options = std::make_unique<Options>();
    flashoptim::Options native = options->native();
    for (const auto& option : group.options) {
      std::visit([&](auto& chosen) { Set(chosen, option.first, option.second); }, native);
    }
    options->set_native(native);
    std::vector<torch::Tensor> parameters;
    for (const std::size_t i : group.parameters) parameters.push_back(read.parameters[i].weight);
    groups.emplace_back(std::move(parameters), std::move(options));
  }
  return std::make_unique<Optimizer>(groups);
}

std::unique_ptr<flashoptim::FlashOptimizer> MakeOptimizer(const Case& read) {
  using namespace flashoptim;  // NOLINT(google-build-using-namespace)
  if (read.optimizer == "SGD") return Make<FlashSGD, FlashSGDOptions>(read);
  if (read.optimizer == "SGDW") return Make<FlashSGDW, FlashSGDWOptions>(read);
  if (read.optimizer == "Adam") return Make<FlashAdam, FlashAdamOptions>(read);
  if (read.optimizer == "AdamW") return Make<FlashAdamW, FlashAdamWOptions>(read);
  if (read.optimizer == "Lion") return Make<FlashLion, FlashLionOptions>(read);
  throw std::invalid_argument("unknown optimizer " + read.optimizer);
}

// Half the squared distance from targets that are never quite the same.
void Backward(Case& read, std::int64_t step) {
  for (Parameter& parameter : read.parameters) {
    const torch::Tensor noise = Random(parameter.target.sizes().vec(), read.device);
    if (parameter.absent > 0 && step % parameter.absent == 1) continue;
    const torch::Tensor distance = parameter.weight.to(torch::kFloat) - parameter.target - noise;
    (distance * distance * 0.5).sum().backward();
  }
}

void Write(const std::string& path, const torch::Tensor& tensor) {
  const torch::Tensor bytes = tensor.detach().cpu().contiguous();
  std::ofstream file(path, std::ios::binary);
  file.write(static_cast<const char*>(bytes.const_data_ptr()),
             static_cast<std::streamsize>(bytes.nbytes()));
  if (!file) throw std::runtime_error("cannot write " + path);
}

void Train(Case& read, const std::string& folder) {
  std::unique_ptr<flashoptim::FlashOptimizer> optimizer = MakeOptimizer(read);
  auto schedule = std::make_unique<torch::optim::StepLR>(*optimizer, read.decay_every, read.decay);
  for (std::int64_t step = 0; step < read.steps; ++step) {
    if (step == read.save_at) {
      std::stringstream archive;
      torch::save(*optimizer, archive);
      optimizer = MakeOptimizer(read);
      torch::load(*optimizer, archive);
      // LibTorch's schedulers are not saved; the count of this one begins again.
      schedule = std::make_unique<torch::optim::StepLR>(*optimizer, read.decay_every, read.decay);
    }
    optimizer->zero_grad();
    Backward(read, step);
    optimizer->step();
    schedule->step();
  }
  for (std::size_t i = 0; i < read.parameters.size(); ++i) {
    const torch::Tensor& weight = read.parameters[i].weight;
    const std::string prefix = folder + "/" + std::to_string(i) + ".";
    Write(prefix + "weight", weight);
    const auto found = optimizer->state().find(weight.unsafeGetTensorImpl());
    if (found == optimizer->state().end()) continue;
    const auto& state = dynamic_cast<const flashoptim::FlashParamState&>(*found->second);
    for (const auto& [name, tensor] : state.tensors()) {
      Write(std::string(prefix).append(name), tensor);
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  try {
    if (argc != 3) throw std::invalid_argument("usage: libtorch_parity CASE FOLDER");
    Case read = ReadCase(argv[1]);
    Train(read, argv[2]);
    return 0;
  } catch (const std::exception& error) {
    std::cerr << error.what() << '\n';
    return 1;
  }
}

#include <algorithm>
#include <array>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>

#include "commands.h"
#include "flashoptim/state_file.h"
#include "model_shapes.h"
#include "text.h"

namespace flashoptim::tools {
namespace {

// Sizes that GPUs are sold with; a GB is taken as 10^9 bytes, which every one of them has.
constexpr std::array<int, 7> kGpuSizes{16, 24, 40, 48, 80, 141, 192};

struct Settings {
  std::string model;
  std::string params;
  std::string weights = "bf16";
  std::string optimizer = "all";
  std::uint64_t ranks = 1;
  bool gradient_release = false;
  bool as_json = false;
};

struct Method {
  std::string name;
  Rule rule;
  KeptState kept;
  DType weight;
};

struct Memory {
  double weights = 0;
  double gradients = 0;
  double states = 0;
  double total() const { return weights + gradients + states; }
};

// The largest rank's part of bytes that are cut along the first dimension.
double OfRank(std::uint64_t bytes, const ModelParameter& parameter, std::uint64_t ranks) {
  if (ranks == 1 || parameter.shape.empty() || parameter.shape[0] == 0) {
    return static_cast<double>(bytes);
  }
  const std::uint64_t rows = parameter.shape[0];
  const std::uint64_t mine = (rows + ranks - 1) / ranks;
  return static_cast<double>(bytes) * static_cast<double>(mine) / static_cast<double>(rows);
}

Memory MemoryOf(const std::vector<ModelParameter>& model, const Method& method,
                const Settings& settings) {
  Memory memory;
  const std::uint64_t weight_bytes =
      BytesOf(method.weight == DType::kFloat32 ? FileDType::kF32 : FileDType::kBF16);
  for (const ModelParameter& parameter : model) {
    const double weight = OfRank(parameter.elements() * weight_bytes, parameter, settings.ranks);
    memory.weights += weight;
    // With gradient release one gradient lives at a time, whole before it is reduced.
    memory.gradients =
        settings.gradient_release
            ? std::max(memory.gradients, static_cast<double>(parameter.elements() * weight_bytes))
            : memory.gradients + weight;
    for (const StateTensor& tensor :
         StateTensorsOf(method.rule, method.kept, method.weight, parameter.shape)) {
      memory.states += OfRank(tensor.bytes(), parameter, tensor.shape.empty() ? 1 : settings.ranks);
    }
  }
  return memory;
}

std::vector<Method> Methods(const Settings& settings) {
  struct Named {
    const char* option;
    const char* flash;
    const char* torch;
    Rule rule;
  };
  static constexpr std::array<Named, 3> kNamed{
      {{"adamw", "FlashAdamW", "torch AdamW", Rule::kAdam},
       {"lion", "FlashLion", "Lion", Rule::kLion},
       {"sgd", "FlashSGD momentum", "torch SGD momentum", Rule::kSgd}}};
  const DType weight = settings.weights == "fp32"   ? DType::kFloat32
                       : settings.weights == "fp16" ? DType::kFloat16
                                                    : DType::kBFloat16;
  std::vector<Method> methods;
  for (const Named& named : kNamed) {
    if (settings.optimizer != "all" && settings.optimizer != named.option) continue;
    const std::string name = named.flash;
    if (weight == DType::kFloat32) {
      methods.push_back({name + ", fp32 weights", named.rule, {}, weight});
    } else {
      for (const std::int32_t bits : {24, 32, 16}) {
        KeptState kept;
        kept.master_weight_bits = bits;
        methods.push_back({name + ", " + std::to_string(bits) + " bits", named.rule, kept, weight});
      }
    }
    KeptState plain;
    plain.codec = Codec::kNone;
    methods.push_back(
        {std::string(named.torch) + ", fp32 masters", named.rule, plain, DType::kFloat32});
  }
  return methods;
}

std::string FittingGpus(double bytes) {
  std::string fitting;
  for (const int size : kGpuSizes) {
    if (bytes <= size * 1e9) fitting += (fitting.empty() ? "" : " ") + std::to_string(size);
  }
  return fitting.empty() ? "none" : fitting;
}

void Print(const Settings& settings, std::uint64_t parameters, const std::vector<Method>& methods,
           const std::vector<Memory>& memories) {
  const auto count = static_cast<double>(parameters);
  std::printf("%s parameters, %s weights, %llu rank%s%s\n\n", Fixed(count, 0).c_str(),
              settings.weights.c_str(), static_cast<unsigned long long>(settings.ranks),
              settings.ranks == 1 ? "" : "s (bytes of the largest)",
              settings.gradient_release ? ", gradient release" : "");
  std::vector<std::vector<std::string>> rows{
      {"optimizer", "weights", "gradients", "states", "total", "bytes each", "fits GPUs of (GB)"}};
  for (std::size_t i = 0; i < methods.size(); ++i) {
    const Memory& m = memories[i];
    rows.push_back({methods[i].name, Bytes(m.weights), Bytes(m.gradients), Bytes(m.states),
                    Bytes(m.total()),
                    Fixed(m.total() / count * static_cast<double>(settings.ranks), 2),
                    FittingGpus(m.total())});
  }
  PrintTable(rows);
  std::printf("\nActivations, temporary memory and the CUDA context are not included.\n");
}

void PrintJson(const Settings& settings, std::uint64_t parameters,
               const std::vector<Method>& methods, const std::vector<Memory>& memories) {
  nlohmann::json rows = nlohmann::json::array();
  for (std::size_t i = 0; i < methods.size(); ++i) {
    const Memory& m = memories[i];
    nlohmann::json fits = nlohmann::json::array();
    for (const int size : kGpuSizes) {
      if (m.total() <= size * 1e9) fits.push_back(size);
    }
    rows.push_back({{"optimizer", methods[i].name},
                    {"weights", m.weights},
                    {"gradients", m.gradients},
                    {"states", m.states},
                    {"total", m.total()},
                    {"fits_gb", fits}});
  }
  const nlohmann::json text = {{"parameters", parameters},
                               {"ranks", settings.ranks},
                               {"gradient_release", settings.gradient_release},
                               {"activations_included", false},
                               {"rows", rows}};
  std::printf("%s\n", text.dump(2).c_str());
}

void Run(const Settings& settings) {
  if (settings.model.empty() == settings.params.empty()) {
    throw UsageError("plan needs a model or --params, and not both; see flashoptim plan --help");
  }
  const auto model = settings.model.empty() ? ShapesOfCount(ParseCount(settings.params, "--params"))
                                            : ShapesOf(settings.model);
  std::uint64_t parameters = 0;
  for (const ModelParameter& parameter : model) parameters += parameter.elements();
  if (parameters == 0) throw FileError(settings.model + " has no parameters of a floating dtype");
  const std::vector<Method> methods = Methods(settings);
  std::vector<Memory> memories;
  memories.reserve(methods.size());
  for (const Method& method : methods) memories.push_back(MemoryOf(model, method, settings));
  (settings.as_json ? PrintJson : Print)(settings, parameters, methods, memories);
}

}  // namespace

void AddPlan(CLI::App& app) {
  auto settings = std::make_shared<Settings>();
  CLI::App* command = app.add_subcommand(
      "plan",
      "How much memory weights, gradients and optimizer states take, and which GPUs they fit");
  command->add_option("model", settings->model,
                      "a .safetensors file, a .safetensors.index.json, or a config.json");
  command->add_option("--params", settings->params, "instead of a model: a number, such as 8B");
  command->add_option("--weights", settings->weights, "dtype of the weights: bf16, fp16 or fp32")
      ->check(CLI::IsMember({"bf16", "fp16", "fp32"}))
      ->capture_default_str();
  command->add_option("--optimizer", settings->optimizer, "adamw, lion, sgd or all")
      ->check(CLI::IsMember({"all", "adamw", "lion", "sgd"}))
      ->capture_default_str();
  command->add_option("--ranks", settings->ranks, "shard over so many GPUs, row by row")
      ->check(CLI::Range(1, 1'000'000))
      ->capture_default_str();
  command->add_flag("--gradient-release", settings->gradient_release,
                    "free each gradient as soon as its parameter is stepped");
  command->add_flag("--json", settings->as_json, "machine-readable output");
  command->footer(
      "Examples:\n  flashoptim plan --params 8B\n  flashoptim plan config.json --ranks 8\n"
      "  flashoptim plan model.safetensors.index.json --optimizer adamw --gradient-release");
  command->callback([settings] { Run(*settings); });
}

}  // namespace flashoptim::tools

#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>

#include "commands.h"
#include "flashoptim/state_file.h"
#include "text.h"

namespace flashoptim::tools {
namespace {

using nlohmann::json;

struct Settings {
  std::string file;
  bool as_json = false;
};

json StatisticsOf(const MomentTensors& moment, const MomentStatistics& s) {
  json text = {{"tensor", moment.codes->name},
               {"elements", s.elements},
               {"nonfinite", s.nonfinite},
               {"zeros", s.zeros}};
  if (moment.scale != nullptr) {
    text["groups"] = s.groups;
    text["fresh_groups"] = s.fresh_groups;
    text["nonfinite_groups"] = s.flagged_groups;
    text["saturated"] = s.saturated;
    text["smallest_scale"] = s.smallest_scale;
    text["largest_scale"] = s.largest_scale;
  }
  return text;
}

json ParameterToJson(const ParameterState& parameter) {
  std::uint64_t bytes = 0;
  for (const FileTensor* tensor :
       {parameter.weight, parameter.correction, parameter.step, parameter.stream_key}) {
    if (tensor != nullptr) bytes += tensor->data.size();
  }
  json moments = json::array();
  for (const MomentTensors& moment : parameter.moments) {
    bytes += moment.codes->data.size() + (moment.scale != nullptr ? moment.scale->data.size() : 0);
    moments.push_back(StatisticsOf(moment, CheckMoment(parameter, moment)));
  }
  const std::uint64_t nonfinite = CheckWeights(parameter);
  return {{"name", parameter.name},   {"shape", parameter.shape},
          {"group", parameter.group}, {"codec", NameOf(parameter.codec)},
          {"bytes", bytes},           {"nonfinite_weights", nonfinite},
          {"moments", moments}};
}

json Describe(const CheckpointFile& file) {
  json tensors = json::array();
  std::uint64_t bytes = 0;
  for (const FileTensor& tensor : file.tensors()) {
    bytes += tensor.data.size();
    tensors.push_back({{"name", tensor.name},
                       {"dtype", NameOf(tensor.dtype)},
                       {"shape", tensor.shape},
                       {"bytes", tensor.data.size()}});
  }
  json text = {
      {"file", file.path()},         {"bytes", bytes},     {"checksums", file.has_checksums()},
      {"metadata", file.metadata()}, {"tensors", tensors}, {"parameters", json::array()}};
  const auto state = ReadOptimizerState(file);
  if (!state) return text;
  std::uint64_t elements = 0;
  std::uint64_t done = 0;
  const FileProgress progress = ProgressBar("inspecting");
  for (const ParameterState& parameter : state->parameters) {
    elements += parameter.elements();
    text["parameters"].push_back(ParameterToJson(parameter));
    if (progress) progress(++done, state->parameters.size());
  }
  text["options"] = json::parse(file.metadata().at(kOptionsKey));
  text["elements"] = elements;
  if (elements != 0) {
    text["bytes_per_parameter"] = static_cast<double>(bytes) / static_cast<double>(elements);
  }
  return text;
}

std::string Short(const json& value) {
  if (value.is_null()) return "not finite";
  char text[32];
  std::snprintf(text, sizeof text, "%.3g", value.get<double>());
  return text;
}

void PrintParameters(const json& text) {
  std::vector<std::vector<std::string>> rows{{"moment", "codec", "elements", "scales", "saturated",
                                              "fresh groups", "zeros", "not finite"}};
  std::uint64_t nonfinite = 0;
  for (const json& parameter : text["parameters"]) {
    nonfinite += parameter["nonfinite_weights"].get<std::uint64_t>();
    for (const json& moment : parameter["moments"]) {
      const bool scaled = moment.contains("groups") && moment["groups"] != 0;
      rows.push_back(
          {Printable(moment["tensor"]), parameter["codec"], moment["elements"].dump(),
           scaled ? Short(moment["smallest_scale"]) + " to " + Short(moment["largest_scale"]) : "-",
           scaled ? moment["saturated"].dump() : "-",
           scaled ? moment["fresh_groups"].dump() + "/" + moment["groups"].dump() : "-",
           moment["zeros"].dump(), moment["nonfinite"].dump()});
    }
  }
  std::printf("\n");
  PrintTable(rows);
  std::printf("\nmaster weights that are not finite: %llu\n",
              static_cast<unsigned long long>(nonfinite));
  if (text.contains("bytes_per_parameter")) {
    std::printf("bytes per parameter: %.3f\n", text["bytes_per_parameter"].get<double>());
  }
}

void Print(const json& text) {
  std::printf("%s: %zu tensors, %s, %s\n", text["file"].get<std::string>().c_str(),
              text["tensors"].size(), Bytes(text["bytes"].get<double>()).c_str(),
              text["checksums"].get<bool>() ? "checksums match" : "no checksums");
  for (const auto& [name, value] : text["metadata"].items()) {
    std::printf("  %s: %s\n", Printable(name).c_str(), Printable(value.get<std::string>()).c_str());
  }
  std::vector<std::vector<std::string>> rows{{"tensor", "dtype", "shape", "bytes"}};
  for (const json& tensor : text["tensors"]) {
    rows.push_back({Printable(tensor["name"]), tensor["dtype"], tensor["shape"].dump(),
                    tensor["bytes"].dump()});
  }
  std::printf("\n");
  PrintTable(rows);
  if (!text["parameters"].empty()) PrintParameters(text);
}

void Run(const Settings& settings) {
  ReadOptions options;
  options.progress = ProgressBar("reading");
  const json text = Describe(CheckpointFile::Open(settings.file, options));
  if (settings.as_json) {
    // The name of the file may be no UTF-8.
    std::printf("%s\n", text.dump(2, ' ', false, json::error_handler_t::replace).c_str());
  } else {
    Print(text);
  }
}

}  // namespace

void AddInspect(CLI::App& app) {
  auto settings = std::make_shared<Settings>();
  CLI::App* command = app.add_subcommand(
      "inspect", "Tensors, codecs, bytes per parameter, range and saturation of a state file");
  command->add_option("file", settings->file, "a .safetensors, .safetensors.zst or index file")
      ->required();
  command->add_flag("--json", settings->as_json, "machine-readable output");
  command->footer(
      "Examples:\n  flashoptim inspect state.safetensors\n"
      "  flashoptim inspect state.safetensors --json | jq .bytes_per_parameter");
  command->callback([settings] { Run(*settings); });
}

void AddVerify(CLI::App& app) {
  auto path = std::make_shared<std::string>();
  CLI::App* command = app.add_subcommand(
      "verify", "Check structure and checksums of a file, and decode all its states");
  command->add_option("file", *path, "a .safetensors, .safetensors.zst or index file")->required();
  command->footer(
      "Exit code 0 if all is well, 1 if not; the message names the tensor.\n"
      "Examples:\n  flashoptim verify state.safetensors && echo fine");
  command->callback([path] {
    ReadOptions options;
    options.progress = ProgressBar("verifying");
    const CheckpointFile file = CheckpointFile::Open(*path, options);
    const auto state = ReadOptimizerState(file);
    std::size_t parameters = 0;
    if (state) {
      const FileProgress progress = ProgressBar("decoding");
      for (const ParameterState& parameter : state->parameters) {
        CheckWeights(parameter);
        for (const MomentTensors& moment : parameter.moments) CheckMoment(parameter, moment);
        if (progress) progress(parameters + 1, state->parameters.size());
        ++parameters;
      }
    }
    std::printf("%s: %zu tensors, %s, %s\n", path->c_str(), file.tensors().size(),
                file.has_checksums() ? "checksums match" : "no checksums to compare",
                state ? ("states of " + std::to_string(parameters) + " parameters decode").c_str()
                      : "no optimizer state");
  });
}

}  // namespace flashoptim::tools

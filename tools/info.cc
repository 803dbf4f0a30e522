#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "commands.h"
#include "flashoptim/checkpoint.h"
#include "flashoptim/runtime.h"
#include "flashoptim/types.h"

namespace flashoptim::tools {
namespace {

void Run(bool as_json) {
  const bool cuda = CudaAvailable();
  const nlohmann::json text = {{"version", Version()},        {"format_version", kFormatVersion},
                               {"cpu_target", CpuTarget()},   {"cpu_targets", CpuTargets()},
                               {"cpu_threads", CpuThreads()}, {"cuda_available", cuda},
                               {"cuda_status", CudaStatus()}, {"zstd", HasZstd()}};
  if (as_json) {
    std::printf("%s\n", text.dump(2).c_str());
    return;
  }
  std::string targets;
  for (const std::string& target : CpuTargets()) targets += (targets.empty() ? "" : ", ") + target;
  std::printf("flashoptim  %s, format %d\n", Version(), kFormatVersion);
  std::printf("CPU         %s (this machine can run: %s), %d threads\n", CpuTarget().c_str(),
              targets.c_str(), CpuThreads());
  std::printf("CUDA        %s\n", CudaStatus().c_str());
  std::printf("archives    %s\n", HasZstd() ? "zstd" : "none (built without libzstd)");
}

}  // namespace

void AddInfo(CLI::App& app) {
  auto as_json = std::make_shared<bool>(false);
  CLI::App* command =
      app.add_subcommand("info", "Version, format, CPU instruction sets and threads, GPUs");
  command->add_flag("--json", *as_json, "machine-readable output");
  command->footer("Examples:\n  flashoptim info\n  FLASHOPTIM_CPU_TARGET=avx2 flashoptim info");
  command->callback([as_json] { Run(*as_json); });
}

}  // namespace flashoptim::tools

#include <algorithm>
#include <array>
#include <cstdio>
#include <filesystem>
#include <memory>

#include "commands.h"
#include "flashoptim/state_file.h"
#include "text.h"

namespace flashoptim::tools {
namespace {

struct Settings {
  std::string source;
  std::string target;
  std::string shard_size;
  int level = 3;
};

// Pickles of torch need torch; the Python package reads them.
void RefusePickle(const std::string& path) {
  for (const char* ending : {".pt", ".pth", ".bin", ".ckpt"}) {
    if (path.ends_with(ending)) {
      throw UsageError(path +
                       ": torch's checkpoints are read and written by the Python package: "
                       "python -m flashoptim_cpp convert --help");
    }
  }
}

void Run(const Settings& settings) {
  RefusePickle(settings.source);
  RefusePickle(settings.target);
  ReadOptions read;
  read.progress = ProgressBar("reading");
  read.unpack_folder = std::filesystem::path(settings.target).parent_path().string();
  if (read.unpack_folder.empty()) read.unpack_folder = ".";
  const CheckpointFile file = CheckpointFile::Open(settings.source, read);
  ReadOptimizerState(file);  // what does not fit together is not copied
  WriteOptions write;
  write.progress = ProgressBar("writing");
  write.metadata = file.metadata();
  write.zstd_level = settings.level;
  if (!settings.shard_size.empty()) {
    write.shard_bytes = ParseCount(settings.shard_size, "--shard-size");
  }
  WriteCheckpoint(settings.target, file.tensors(), write);
  std::printf("%s: %zu tensors\n", settings.target.c_str(), file.tensors().size());
}

}  // namespace

void AddConvert(CLI::App& app) {
  auto settings = std::make_shared<Settings>();
  CLI::App* command = app.add_subcommand(
      "convert", "Copy a file of tensors into another form: single, sharded, compressed");
  command->add_option("source", settings->source, "a .safetensors, .safetensors.zst or index file")
      ->required();
  command
      ->add_option("target", settings->target,
                   "its ending decides: .safetensors, .safetensors.zst, .safetensors.index.json")
      ->required();
  command->add_option("--shard-size", settings->shard_size,
                      "largest shard of an index, for instance 5GB");
  command->add_option("--level", settings->level, "of zstd, 1 to 22")
      ->check(CLI::Range(1, 22))
      ->capture_default_str();
  command->footer(
      "torch checkpoints (.pt) need torch: python -m flashoptim_cpp convert --help\n"
      "Examples:\n  flashoptim convert state.safetensors state.safetensors.zst\n"
      "  flashoptim convert state.safetensors.zst state.safetensors\n"
      "  flashoptim convert state.safetensors state.safetensors.index.json --shard-size 5GB");
  command->callback([settings] { Run(*settings); });
}

}  // namespace flashoptim::tools

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <optional>
#include <set>
#include <tuple>

#include "checkpoint/archive.h"
#include "checkpoint/atomic_file.h"
#include "checkpoint/checksums.h"
#include "checkpoint/header.h"
#include "checkpoint/index.h"
#include "checkpoint/strict_json.h"
#include "flashoptim/checkpoint.h"
#include "flashoptim/types.h"

namespace flashoptim {
namespace {

using checkpoint::AtomicFile;
using checkpoint::Metadata;
using checkpoint::Quoted;

// Of a piece that is written before the progress is told again.
constexpr std::size_t kPiece = std::size_t{16} << 20;

// Widest elements first, then by name: what the safetensors package does, and every tensor is
// aligned to its element.
std::vector<FileTensor> InFileOrder(std::span<const FileTensor> tensors, const std::string& path) {
  std::vector<FileTensor> ordered(tensors.begin(), tensors.end());
  std::sort(ordered.begin(), ordered.end(), [](const FileTensor& a, const FileTensor& b) {
    return std::make_tuple(BytesOf(b.dtype), std::string_view(a.name)) <
           std::make_tuple(BytesOf(a.dtype), std::string_view(b.name));
  });
  std::set<std::string_view> names;
  for (const FileTensor& tensor : ordered) {
    const std::string where = path + ": tensor " + Quoted(tensor.name) + ": ";
    if (tensor.name == "__metadata__" || tensor.name.find('\0') != std::string::npos) {
      throw FileError(where + "a tensor cannot have this name; rename it");
    }
    if (!names.insert(tensor.name).second) {
      throw FileError(where + "there are two of this name; rename one");
    }
    const std::optional<std::uint64_t> bytes = checkpoint::BytesNeeded(tensor);
    if (bytes != tensor.data.size()) {
      throw FileError(where + "it has " + std::to_string(tensor.data.size()) +
                      " bytes, and its dtype and shape need " +
                      (bytes ? std::to_string(*bytes) : "more than 2^64"));
    }
  }
  return ordered;
}

// Progress of two passes: checksums, then data.
class Work {
 public:
  Work(std::span<const FileTensor> tensors, const FileProgress& progress) : progress_(progress) {
    for (const FileTensor& tensor : tensors) total_ += 2 * tensor.data.size();
  }
  void Done(std::uint64_t bytes) {
    done_ += bytes;
    if (progress_) progress_(done_, total_);
  }

 private:
  const FileProgress& progress_;
  std::uint64_t done_ = 0;
  std::uint64_t total_ = 0;
};

Metadata WithChecksums(std::span<const FileTensor> tensors, std::span<const std::string> sums,
                       Metadata metadata) {
  nlohmann::json list = nlohmann::json::object();
  for (std::size_t i = 0; i < tensors.size(); ++i) list[tensors[i].name] = sums[i];
  metadata[checkpoint::kFormatKey] = std::to_string(kFormatVersion);
  metadata[checkpoint::kVersionKey] = FLASHOPTIM_VERSION;
  metadata[checkpoint::kTensorSums] = list.dump();
  metadata[checkpoint::kMetadataSum] = checkpoint::Hex(checkpoint::ChecksumOf(metadata));
  return metadata;
}

void WriteTensors(std::span<const FileTensor> tensors, const std::string& header,
                  const checkpoint::Sink& sink, Work& work) {
  sink(std::as_bytes(std::span(header)));
  for (const FileTensor& tensor : tensors) {
    for (std::size_t at = 0; at < tensor.data.size(); at += kPiece) {
      const auto piece = tensor.data.subspan(at, std::min(kPiece, tensor.data.size() - at));
      sink(piece);
      work.Done(piece.size());
    }
  }
}

void WriteOne(const std::string& path, std::span<const FileTensor> tensors,
              const Metadata& metadata, const WriteOptions& options, Work& work) {
  const std::string header = checkpoint::HeaderBytes(tensors, metadata);
  const std::uint64_t limit = ReadOptions{}.header_limit;
  if (header.size() - checkpoint::kLengthBytes > limit) {
    throw FileError(path + ": its header would have " + std::to_string(header.size()) +
                    " bytes, and readers take at most " + std::to_string(limit) +
                    "; shorten the names of tensors, or write shards");
  }
  AtomicFile file(path);
  const checkpoint::Sink to_file = [&](std::span<const std::byte> bytes) { file.Write(bytes); };
  if (path.ends_with(checkpoint::kArchiveEnding)) {
    const auto compressor = checkpoint::MakeCompressor(options.zstd_level, to_file, path);
    WriteTensors(
        tensors, header, [&](std::span<const std::byte> bytes) { compressor->Write(bytes); }, work);
    compressor->Finish();
  } else {
    WriteTensors(tensors, header, to_file, work);
  }
  file.Commit();
}

// The shards of `x.safetensors.index.json` are x-gNNNNNN-IIIII-of-NNNNN.safetensors. Each writing
// has a generation of its own, so that it never touches a file that the index in place names.
class Generations {
 public:
  explicit Generations(const std::string& index_path) : path_(index_path) {
    const std::string name = path_.filename().string();
    stem_ = name.substr(0, name.size() - checkpoint::kIndexEnding.size());
    for (const auto& [file, generation] : Files()) {
      next_ = std::max(next_, generation + 1);
      others_.push_back(file);
    }
  }

  std::string NameOf(std::size_t shard, std::size_t shards) const {
    char text[64];
    std::snprintf(text, sizeof text, "-g%06lu-%05zu-of-%05zu", next_, shard + 1, shards);
    return stem_ + text + std::string(checkpoint::kFileEnding);
  }

  // Where a shard of that name goes.
  std::string Take(const std::string& name) {
    return own_.emplace_back(path_.parent_path() / name).string();
  }

  // What the index no longer names. A reader that has them mapped keeps them.
  void RemoveOthers() const { Remove(others_); }

  // What no index names, because the writing failed: on a full disk the next try needs the space.
  void RemoveOwn() const { Remove(own_); }

 private:
  static void Remove(const std::vector<std::filesystem::path>& files) {
    for (const std::filesystem::path& file : files) {
      std::error_code ignored;
      std::filesystem::remove(file, ignored);
    }
  }

  std::vector<std::pair<std::filesystem::path, unsigned long>> Files() const {
    std::vector<std::pair<std::filesystem::path, unsigned long>> files;
    const std::string folder = path_.has_parent_path() ? path_.parent_path().string() : ".";
    std::error_code error;
    std::filesystem::directory_iterator entry(folder, error);
    for (; !error && entry != std::filesystem::directory_iterator(); entry.increment(error)) {
      const std::string name = entry->path().filename().string();
      if (!name.starts_with(stem_ + "-g")) continue;
      unsigned long generation = 0;
      int end = 0;
      const std::string rest = name.substr(stem_.size());
      if (std::sscanf(rest.c_str(), "-g%lu-%*u-of-%*u.safetensors%n", &generation, &end) == 1 &&
          static_cast<std::size_t>(end) == rest.size()) {
        files.emplace_back(entry->path(), generation);
      }
    }
    // Who does not see the shards that are there would write over them.
    if (error) {
      throw FileError(path_.string() + ": its folder " + folder +
                      " cannot be listed: " + error.message() + "; shards need that");
    }
    return files;
  }

  std::filesystem::path path_;
  std::string stem_;
  unsigned long next_ = 1;
  std::vector<std::filesystem::path> own_;
  std::vector<std::filesystem::path> others_;  // of earlier generations
};

std::vector<std::span<const FileTensor>> Cut(std::span<const FileTensor> tensors,
                                             std::uint64_t shard_bytes) {
  std::vector<std::span<const FileTensor>> shards;
  std::size_t begin = 0;
  std::uint64_t bytes = 0;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    if (i > begin && bytes + tensors[i].data.size() > shard_bytes) {
      shards.push_back(tensors.subspan(begin, i - begin));
      begin = i;
      bytes = 0;
    }
    bytes += tensors[i].data.size();
  }
  if (begin < tensors.size()) shards.push_back(tensors.subspan(begin));
  return shards;
}

// Returns the text of the index that names them.
std::string WriteGeneration(Generations& generation, std::span<const FileTensor> tensors,
                            std::span<const std::string> sums, const WriteOptions& options,
                            Work& work) {
  const auto shards = Cut(tensors, options.shard_bytes);
  checkpoint::Index index;
  Metadata metadata = options.metadata;
  Metadata whole = metadata;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    whole.emplace("tensor " + tensors[i].name, sums[i]);
  }
  index.set_sum = checkpoint::Hex(checkpoint::ChecksumOf(whole));
  metadata[checkpoint::kSetSum] = index.set_sum;
  std::uint64_t total = 0;
  std::size_t first = 0;
  for (std::size_t s = 0; s < shards.size(); ++s) {
    const std::string name = generation.NameOf(s, shards.size());
    const auto shard_sums = sums.subspan(first, shards[s].size());
    first += shards[s].size();
    WriteOne(generation.Take(name), shards[s], WithChecksums(shards[s], shard_sums, metadata),
             options, work);
    for (const FileTensor& tensor : shards[s]) {
      index.file_of.emplace(tensor.name, name);
      total += tensor.data.size();
    }
  }
  return checkpoint::IndexText(index, total);
}

void WriteShards(const std::string& path, std::span<const FileTensor> tensors,
                 std::span<const std::string> sums, const WriteOptions& options, Work& work) {
  // First of all, so that a second writer is refused: each would remove shards of the other.
  AtomicFile file(path);
  Generations generation(path);
  try {
    const std::string text = WriteGeneration(generation, tensors, sums, options, work);
    file.Write(std::as_bytes(std::span(text)));
    file.Commit();
  } catch (...) {
    if (!file.committed()) generation.RemoveOwn();
    throw;
  }
  generation.RemoveOthers();
}

}  // namespace

void WriteCheckpoint(const std::string& path, std::span<const FileTensor> tensors,
                     const WriteOptions& options) {
  const bool sharded = path.ends_with(checkpoint::kIndexEnding);
  if (!sharded && !path.ends_with(checkpoint::kFileEnding) &&
      !path.ends_with(checkpoint::kArchiveEnding)) {
    throw FileError(path +
                    ": a checkpoint's name must end in .safetensors, .safetensors.zst or "
                    ".safetensors.index.json");
  }
  if (sharded != (options.shard_bytes != 0)) {
    throw FileError(path + (sharded ? ": an index needs a size of its shards above 0"
                                    : ": shards need a name that ends in .safetensors.index.json"));
  }
  const std::vector<FileTensor> ordered = InFileOrder(tensors, path);
  Work work(ordered, options.progress);
  const std::vector<std::string> sums =
      checkpoint::ChecksumsOf(ordered, [&](std::uint64_t bytes) { work.Done(bytes); });
  try {
    if (sharded) {
      WriteShards(path, ordered, sums, options, work);
    } else {
      WriteOne(path, ordered, WithChecksums(ordered, sums, options.metadata), options, work);
    }
  } catch (const nlohmann::json::exception&) {
    throw FileError(path + ": a name or a text of the metadata is not UTF-8; rename it");
  }
}

}  // namespace flashoptim

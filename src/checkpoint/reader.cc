#include <algorithm>
#include <filesystem>
#include <set>
#include <unordered_map>
#include <utility>

#include "checkpoint/archive.h"
#include "checkpoint/checksums.h"
#include "checkpoint/header.h"
#include "checkpoint/index.h"
#include "checkpoint/mapping.h"
#include "checkpoint/strict_json.h"
#include "flashoptim/checkpoint.h"
#include "flashoptim/types.h"

namespace flashoptim {
namespace {

using checkpoint::Header;
using checkpoint::Mapping;
using checkpoint::Metadata;
using checkpoint::Quoted;

constexpr const char* kDamaged = "; the file is damaged: restore it from a copy";

bool IsOurs(const Metadata& metadata) {
  const auto first = metadata.lower_bound(checkpoint::kOurPrefix);
  return first != metadata.end() && first->first.starts_with(checkpoint::kOurPrefix);
}

// A file of ours says so in a way that no flipped bit can hide.
void CheckMetadata(const Metadata& metadata, const std::string& file) {
  if (!IsOurs(metadata)) return;
  for (const char* name :
       {checkpoint::kFormatKey, checkpoint::kTensorSums, checkpoint::kMetadataSum}) {
    if (!metadata.contains(name)) {
      throw FileError(file + ": its metadata lack " + Quoted(name) + kDamaged);
    }
  }
  const std::string sum = checkpoint::Hex(checkpoint::ChecksumOf(metadata));
  if (metadata.at(checkpoint::kMetadataSum) != sum) {
    throw FileError(file + ": the checksum of its metadata is " + sum + " and should be " +
                    Quoted(metadata.at(checkpoint::kMetadataSum)) + kDamaged);
  }
  const std::string& version = metadata.at(checkpoint::kFormatKey);
  if (version != std::to_string(kFormatVersion)) {
    throw FileError(file + " has the format version " + Quoted(version) +
                    ", and this release reads version " + std::to_string(kFormatVersion) +
                    "; read it with the release that wrote it");
  }
}

std::map<std::string, std::string> TensorSums(const Header& header, const std::string& file) {
  std::map<std::string, std::string> sums;
  const auto text = header.metadata.find(checkpoint::kTensorSums);
  if (text == header.metadata.end()) return sums;
  const auto parsed = checkpoint::ParseObject(text->second, file + ": its list of checksums", {});
  for (const auto& [name, sum] : parsed.items()) {
    sums.emplace(name, sum.is_string() ? sum.get<std::string>() : "");
  }
  for (const FileTensor& tensor : header.tensors) {
    if (!sums.contains(tensor.name)) {
      throw FileError(file + ": tensor " + Quoted(tensor.name) + " has no checksum" + kDamaged);
    }
  }
  if (sums.size() != header.tensors.size()) {
    throw FileError(file + ": it has checksums of tensors that are not there" + kDamaged);
  }
  return sums;
}

}  // namespace

struct CheckpointFile::Impl {
  std::string path;
  std::vector<Mapping> mappings;
  std::vector<FileTensor> tensors;
  std::vector<std::string> sums;  // of each tensor, or none
  std::unordered_map<std::string_view, std::size_t> by_name;
  Metadata metadata;

  // Adds the tensors of one file, whose bytes live as long as this object.
  Metadata Add(std::span<const std::byte> bytes, const std::string& file,
               const ReadOptions& options) {
    const std::uint64_t length = checkpoint::HeaderLength(bytes, file, options.header_limit);
    if (length > bytes.size() - checkpoint::kLengthBytes) {
      throw FileError(file + ": its header claims " + std::to_string(length) +
                      " bytes, and the file has " + std::to_string(bytes.size()) +
                      "; it is cut off: fetch it again");
    }
    const auto text = bytes.subspan(checkpoint::kLengthBytes, length);
    Header header =
        checkpoint::ParseHeader({reinterpret_cast<const char*>(text.data()), text.size()}, file);
    const auto data = bytes.subspan(checkpoint::kLengthBytes + length);
    const std::uint64_t end = header.data_ends.empty() ? 0 : header.data_ends.back();
    if (end != data.size()) {
      const std::string last =
          header.tensors.empty() ? "" : "tensor " + Quoted(header.tensors.back().name) + ": ";
      throw FileError(
          file + ": " + last + "the data should end at byte " + std::to_string(end) +
          " and end at " + std::to_string(data.size()) +
          (end > data.size() ? "; the file is cut off" : "; there is more in the file") +
          ": fetch it again");
    }
    CheckMetadata(header.metadata, file);
    const auto file_sums = TensorSums(header, file);
    std::uint64_t begin = 0;
    for (std::size_t i = 0; i < header.tensors.size(); ++i) {
      FileTensor& tensor = header.tensors[i];
      tensor.data = data.subspan(begin, header.data_ends[i] - begin);
      begin = header.data_ends[i];
      if (!file_sums.empty()) sums.push_back(file_sums.at(tensor.name));
      tensors.push_back(std::move(tensor));
    }
    return std::move(header.metadata);
  }

  void AddArchive(const std::string& file, const ReadOptions& options) {
    const Mapping compressed = Mapping::OfFile(file);
    const auto stream = checkpoint::MakeDecompressor(compressed.bytes(), file);
    std::vector<std::byte> head(checkpoint::kLengthBytes);
    head.resize(stream->Read(head));
    const std::uint64_t length = checkpoint::HeaderLength(head, file, options.header_limit);
    head.resize(checkpoint::kLengthBytes + length);
    const auto rest = std::span(head).subspan(checkpoint::kLengthBytes);
    if (stream->Read(rest) != length) {
      throw FileError(file + ": the archive ends within the header" + kDamaged);
    }
    const Header header =
        checkpoint::ParseHeader({reinterpret_cast<const char*>(rest.data()), rest.size()}, file);
    const std::uint64_t data = header.data_ends.empty() ? 0 : header.data_ends.back();
    // The header is known to be at most as long as the limit, so only `data` can overflow.
    if (data > UINT64_MAX / 2)
      throw FileError(file + ": its tensors cannot be so large" + kDamaged);
    const std::uint64_t bytes = head.size() + data;
    Mapping memory = options.unpack_folder.empty()
                         ? Mapping::OfMemory(bytes, file)
                         : Mapping::OfTemporaryFile(bytes, options.unpack_folder);
    std::copy(head.begin(), head.end(), memory.writable().begin());
    if (stream->Read(memory.writable().subspan(head.size())) != data) {
      throw FileError(file + ": the archive ends within the data" + kDamaged);
    }
    std::byte beyond{};
    if (stream->Read({&beyond, 1}) != 0) {
      throw FileError(file + ": the archive has more data than its header says" + kDamaged);
    }
    mappings.push_back(std::move(memory));
    metadata = Add(mappings.back().bytes(), file, options);
  }

  void AddShards(const ReadOptions& options) {
    for (Mapping text = Mapping::OfFile(path);;) {
      try {
        return AddShardsOf(text, options);
      } catch (const FileError&) {
        // Who has put another set in its place meanwhile has removed the shards of this one.
        Mapping now = Mapping::OfFile(path);
        if (std::ranges::equal(now.bytes(), text.bytes())) throw;
        text = std::move(now);
        sums.clear();
        tensors.clear();
        mappings.clear();
      }
    }
  }

  void AddShardsOf(const Mapping& text, const ReadOptions& options) {
    if (text.bytes().size() > options.header_limit) {
      throw FileError(path + ": the index is longer than " + std::to_string(options.header_limit) +
                      " bytes");
    }
    const checkpoint::Index index = checkpoint::ParseIndex(
        {reinterpret_cast<const char*>(text.bytes().data()), text.bytes().size()}, path);
    std::set<std::string> files;
    for (const auto& [tensor, file] : index.file_of) files.insert(file);
    const std::filesystem::path folder = std::filesystem::path(path).parent_path();
    bool first = true;
    for (const std::string& file : files) {
      const std::string shard = (folder / file).string();
      const std::size_t before = tensors.size();
      mappings.push_back(Mapping::OfFile(shard));
      Metadata found = Add(mappings.back().bytes(), shard, options);
      for (std::size_t i = before; i < tensors.size(); ++i) {
        const auto said = index.file_of.find(tensors[i].name);
        if (said == index.file_of.end() || said->second != file) {
          throw FileError(shard + ": tensor " + Quoted(tensors[i].name) + " is in this file, but " +
                          path + " does not say so; fetch all files of the set again");
        }
      }
      if (found.contains(checkpoint::kSetSum) ? found[checkpoint::kSetSum] != index.set_sum
                                              : !index.set_sum.empty()) {
        throw FileError(shard + " belongs to another set of shards than " + path +
                        "; fetch all files of the set again");
      }
      if (first) metadata = std::move(found);
      first = false;
    }
    if (tensors.size() != index.file_of.size()) {
      for (const auto& entry : index.file_of) {
        const std::string& name = entry.first;
        const bool there = std::any_of(tensors.begin(), tensors.end(),
                                       [&](const FileTensor& t) { return t.name == name; });
        if (!there) {
          throw FileError(path + ": tensor " + Quoted(name) + " is not in " + Quoted(entry.second) +
                          "; fetch all files of the set again");
        }
      }
    }
  }

  void Finish(const ReadOptions& options) {
    if (!sums.empty() && sums.size() != tensors.size()) {
      throw FileError(path + ": only some of its shards have checksums; fetch all of them again");
    }
    metadata.erase(checkpoint::kTensorSums);
    metadata.erase(checkpoint::kMetadataSum);
    metadata.erase(checkpoint::kSetSum);
    std::uint64_t total = 0;
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      by_name.emplace(tensors[i].name, i);
      total += tensors[i].data.size();
    }
    if (!options.verify) return;
    std::uint64_t done = 0;
    const auto step = [&](std::uint64_t bytes) {
      done += bytes;
      if (options.progress) options.progress(done, total);
    };
    if (sums.empty()) return;
    const std::vector<std::string> found = checkpoint::ChecksumsOf(tensors, step);
    for (std::size_t i = 0; i < sums.size(); ++i) {
      if (found[i] != sums[i]) {
        throw FileError(path + ": tensor " + Quoted(tensors[i].name) + ": its checksum is " +
                        found[i] + " and should be " + Quoted(sums[i]) + kDamaged);
      }
    }
  }
};

CheckpointFile::CheckpointFile(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
CheckpointFile::~CheckpointFile() = default;
CheckpointFile::CheckpointFile(CheckpointFile&&) noexcept = default;
CheckpointFile& CheckpointFile::operator=(CheckpointFile&&) noexcept = default;

CheckpointFile CheckpointFile::Open(const std::string& path, const ReadOptions& options) {
  auto impl = std::make_unique<Impl>();
  impl->path = path;
  if (path.ends_with(checkpoint::kIndexEnding)) {
    impl->AddShards(options);
  } else if (path.ends_with(checkpoint::kArchiveEnding)) {
    impl->AddArchive(path, options);
  } else {
    impl->mappings.push_back(Mapping::OfFile(path));
    impl->metadata = impl->Add(impl->mappings.back().bytes(), path, options);
  }
  impl->Finish(options);
  return CheckpointFile(std::move(impl));
}

CheckpointFile CheckpointFile::FromBytes(std::span<const std::byte> bytes, const std::string& name,
                                         const ReadOptions& options) {
  auto impl = std::make_unique<Impl>();
  impl->path = name;
  impl->metadata = impl->Add(bytes, name, options);
  impl->Finish(options);
  return CheckpointFile(std::move(impl));
}

const std::string& CheckpointFile::path() const { return impl_->path; }
const std::vector<FileTensor>& CheckpointFile::tensors() const { return impl_->tensors; }
const std::map<std::string, std::string>& CheckpointFile::metadata() const {
  return impl_->metadata;
}
bool CheckpointFile::has_checksums() const {
  return impl_->sums.size() == impl_->tensors.size() && !impl_->tensors.empty();
}

const FileTensor* CheckpointFile::Find(std::string_view name) const {
  const auto found = impl_->by_name.find(name);
  return found == impl_->by_name.end() ? nullptr : &impl_->tensors[found->second];
}

}  // namespace flashoptim

// Fuzz target: a file of checkpoints, with its checksums as they are and repaired, and an index.
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/checksums.h"
#include "checkpoint/header.h"
#include "checkpoint/index.h"
#include "flashoptim/checkpoint.h"
#include "flashoptim/state_file.h"

namespace {

using flashoptim::CheckpointFile;
using flashoptim::FileError;

// The work of `verify` on an open file.
void DecodeAll(const CheckpointFile& file) {
  const auto state = flashoptim::ReadOptimizerState(file);
  if (!state) return;
  for (const auto& parameter : state->parameters) {
    flashoptim::CheckWeights(parameter);
    for (const auto& moment : parameter.moments) flashoptim::CheckMoment(parameter, moment);
  }
}

void ReadAsFile(std::span<const std::byte> bytes, bool verify) {
  flashoptim::ReadOptions options;
  options.verify = verify;
  DecodeAll(CheckpointFile::FromBytes(bytes, "fuzz", options));
}

// The same file with right checksums, which random changes would never give.
std::string Repaired(std::span<const std::byte> bytes) {
  namespace checkpoint = flashoptim::checkpoint;
  const auto length = checkpoint::HeaderLength(bytes, "fuzz", bytes.size());
  const auto rest = bytes.subspan(checkpoint::kLengthBytes);
  if (length > rest.size()) throw FileError("cut off");
  const auto* text = reinterpret_cast<const char*>(rest.data());
  auto header = checkpoint::ParseHeader({text, length}, "fuzz");
  const auto data = rest.subspan(length);
  std::string sums = "{";
  std::uint64_t begin = 0;
  for (std::size_t i = 0; i < header.tensors.size(); ++i) {
    auto& tensor = header.tensors[i];
    if (header.data_ends[i] > data.size()) throw FileError("cut off");
    tensor.data = data.subspan(begin, header.data_ends[i] - begin);
    begin = header.data_ends[i];
  }
  const auto tensor_sums = checkpoint::ChecksumsOf(header.tensors, nullptr);
  // Names with quotes or backslashes are left to the other run.
  for (std::size_t i = 0; i < header.tensors.size(); ++i) {
    const std::string& name = header.tensors[i].name;
    if (name.find_first_of("\"\\") != std::string::npos) throw FileError("name");
    sums += (i == 0 ? "\"" : ",\"") + name + "\":\"" + tensor_sums[i] + "\"";
  }
  header.metadata[checkpoint::kFormatKey] = "1";
  header.metadata[checkpoint::kTensorSums] = sums + "}";
  header.metadata[checkpoint::kMetadataSum] =
      checkpoint::Hex(checkpoint::ChecksumOf(header.metadata));
  std::string file = checkpoint::HeaderBytes(header.tensors, header.metadata);
  for (const auto& tensor : header.tensors) {
    file.append(reinterpret_cast<const char*>(tensor.data.data()), tensor.data.size());
  }
  return file;
}

template <class Call>
void Refusable(const Call& call) {
  try {
    call();
  } catch (const FileError&) {  // the one way to refuse
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::span bytes(reinterpret_cast<const std::byte*>(data), size);
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  Refusable([&] { ReadAsFile(bytes, true); });
  Refusable([&] {
    const std::string repaired = Repaired(bytes);
    ReadAsFile(std::as_bytes(std::span(repaired)), true);
  });
  Refusable([&] { flashoptim::checkpoint::ParseIndex(text, "fuzz"); });
  return 0;
}

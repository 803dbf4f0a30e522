// The archives of builds without libzstd: there are none.
#include "checkpoint/archive.h"
#include "flashoptim/checkpoint.h"

namespace flashoptim {

bool HasZstd() { return false; }

namespace checkpoint {
namespace {

[[noreturn]] void Refuse(const std::string& file) {
  throw FileError(file +
                  ": this build has no zstd; build with libzstd-dev installed, or use the "
                  "program zstd");
}

}  // namespace

std::unique_ptr<Decompressor> MakeDecompressor(std::span<const std::byte> /*compressed*/,
                                               const std::string& file) {
  Refuse(file);
}

std::unique_ptr<Compressor> MakeCompressor(int /*level*/, Sink /*sink*/, const std::string& file) {
  Refuse(file);
}

}  // namespace checkpoint
}  // namespace flashoptim

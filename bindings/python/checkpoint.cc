#include "checkpoint.h"

#include <nanobind/stl/map.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <cstdint>
#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "flashoptim/checkpoint.h"
#include "flashoptim/state_file.h"

namespace flashoptim {
namespace {

namespace nb = nanobind;
using namespace nb::literals;

using Metadata = std::map<std::string, std::string>;
/// Name, dtype, shape, and the address of the elements in host memory.
using TensorAt = std::tuple<std::string, std::string, std::vector<std::uint64_t>, std::uintptr_t>;

FileDType DTypeNamed(const std::string& name, const std::string& tensor) {
  for (int i = 0; i <= static_cast<int>(FileDType::kU64); ++i) {
    const auto dtype = static_cast<FileDType>(i);
    if (NameOf(dtype) == name) return dtype;
  }
  throw FileError("tensor '" + tensor + "': a file cannot hold the dtype " + name);
}

void Write(const std::string& path, const std::vector<TensorAt>& given, const Metadata& metadata,
           std::uint64_t shard_bytes, int zstd_level) {
  std::vector<FileTensor> tensors;
  for (const auto& [name, dtype, shape, address] : given) {
    FileTensor tensor{name, DTypeNamed(dtype, name), shape, {}};
    // An address is how the Python side passes memory that it keeps alive during the call.
    // NOLINTNEXTLINE(performance-no-int-to-ptr)
    tensor.data = {reinterpret_cast<const std::byte*>(address),
                   tensor.elements() * BytesOf(tensor.dtype)};
    tensors.push_back(std::move(tensor));
  }
  WriteOptions options;
  options.metadata = metadata;
  options.shard_bytes = shard_bytes;
  options.zstd_level = zstd_level;
  const nb::gil_scoped_release release;
  WriteCheckpoint(path, tensors, options);
}

nb::tuple Read(const std::string& path) {
  const CheckpointFile file = [&] {
    const nb::gil_scoped_release release;
    CheckpointFile opened = CheckpointFile::Open(path);
    if (const auto state = ReadOptimizerState(opened)) CheckState(*state);
    return opened;
  }();
  nb::dict tensors;
  for (const FileTensor& tensor : file.tensors()) {
    tensors[nb::cast(tensor.name)] = nb::make_tuple(
        std::string(NameOf(tensor.dtype)), tensor.shape,
        nb::bytearray(reinterpret_cast<const char*>(tensor.data.data()), tensor.data.size()));
  }
  return nb::make_tuple(file.metadata(), tensors);
}

}  // namespace

void BindCheckpoint(nb::module_& m) {
  const nb::exception<FileError> file_error(m, "FileError", PyExc_ValueError);
  m.def("write_checkpoint", &Write, "path"_a, "tensors"_a, "metadata"_a, "shard_bytes"_a = 0,
        "zstd_level"_a = 3,
        "Writes tensors (name, dtype, shape, address in host memory) to a file; see "
        "flashoptim/checkpoint.h.");
  m.def("read_checkpoint", &Read, "path"_a,
        "Metadata, and by name the dtype, shape and bytes of each tensor; everything is checked.");
}

}  // namespace flashoptim

#include "checkpoint/dtypes.h"

#include <array>

namespace flashoptim {
namespace {

struct Row {
  FileDType dtype;
  std::string_view name;
  std::uint64_t bytes;
};

// In the order of the enumeration.
constexpr std::array<Row, 17> kRows{{
    {FileDType::kBool, "BOOL", 1},
    {FileDType::kU8, "U8", 1},
    {FileDType::kI8, "I8", 1},
    {FileDType::kF8E5M2, "F8_E5M2", 1},
    {FileDType::kF8E4M3, "F8_E4M3", 1},
    {FileDType::kF8E8M0, "F8_E8M0", 1},
    {FileDType::kI16, "I16", 2},
    {FileDType::kU16, "U16", 2},
    {FileDType::kF16, "F16", 2},
    {FileDType::kBF16, "BF16", 2},
    {FileDType::kI32, "I32", 4},
    {FileDType::kU32, "U32", 4},
    {FileDType::kF32, "F32", 4},
    {FileDType::kC64, "C64", 8},
    {FileDType::kF64, "F64", 8},
    {FileDType::kI64, "I64", 8},
    {FileDType::kU64, "U64", 8},
}};

}  // namespace

std::string_view NameOf(FileDType dtype) { return kRows[static_cast<std::size_t>(dtype)].name; }

std::uint64_t BytesOf(FileDType dtype) { return kRows[static_cast<std::size_t>(dtype)].bytes; }

std::uint64_t FileTensor::elements() const {
  std::uint64_t product = 1;
  for (const std::uint64_t size : shape) product *= size;
  return product;
}

namespace checkpoint {

std::optional<FileDType> DTypeOf(std::string_view name) {
  for (const Row& row : kRows) {
    if (row.name == name) return row.dtype;
  }
  return std::nullopt;
}

}  // namespace checkpoint
}  // namespace flashoptim

#include "tensor_address.h"

#include <cstring>

namespace nb = nanobind;

namespace flashoptim {
namespace {

constexpr std::size_t kWord = sizeof(void*);

// Offset of the word that holds the implementation of the tensor, or 0.
std::size_t OffsetOfTensor(const nb::handle& tensor) {
  const auto implementation = nb::cast<std::uintptr_t>(tensor.attr("_cdata"));
  const auto size = static_cast<std::size_t>(Py_TYPE(tensor.ptr())->tp_basicsize);
  const auto* object = reinterpret_cast<const std::byte*>(tensor.ptr());
  for (std::size_t offset = sizeof(PyObject); offset + kWord <= size; offset += kWord) {
    std::uintptr_t word = 0;
    std::memcpy(&word, object + offset, kWord);
    if (word == implementation) return offset;
  }
  return 0;
}

}  // namespace

std::optional<TensorAddress> TensorAddress::Find(GetDataPointer get, const nb::list& samples) {
  std::optional<TensorAddress> found;
  for (const nb::handle sample : samples) {
    const std::size_t offset = OffsetOfTensor(sample);
    if (offset == 0 || (found && found->offset_ != offset)) return std::nullopt;
    found = TensorAddress(get, offset);
    if (found->Of(sample) != nb::cast<std::uintptr_t>(sample.attr("data_ptr")())) {
      return std::nullopt;
    }
  }
  return found;
}

std::uintptr_t TensorAddress::Of(const nb::handle& tensor) const {
  void* data = nullptr;
  if (get_(reinterpret_cast<std::byte*>(tensor.ptr()) + offset_, &data) != 0) return 0;
  return reinterpret_cast<std::uintptr_t>(data);
}

}  // namespace flashoptim

// Where the memory of a torch tensor is, in a few nanoseconds.
#ifndef FLASHOPTIM_BINDINGS_TENSOR_ADDRESS_H_
#define FLASHOPTIM_BINDINGS_TENSOR_ADDRESS_H_

#include <nanobind/nanobind.h>

#include <cstddef>
#include <cstdint>
#include <optional>

namespace flashoptim {

/// Asks torch's stable C interface, which takes a pointer to the C++ tensor. That one lies in the
/// Python object, which does not tell where: its place is found by comparing words with what the
/// tensor says of itself, and tried. DLPack's function takes longer than all else in the check of a
/// plan, since it counts a reference to the tensor.
class TensorAddress {
 public:
  /// aoti_torch_get_data_ptr: 0 if it wrote the address of the first element to `data`.
  using GetDataPointer = std::int32_t (*)(void* tensor, void** data);

  /// Finds the way for tensors whose type is exactly that of the samples, of which there should be
  /// several with different addresses; nothing if it does not give their addresses.
  static std::optional<TensorAddress> Find(GetDataPointer get, const nanobind::list& samples);

  /// Address of the first element; 0 of a tensor that has no memory.
  std::uintptr_t Of(const nanobind::handle& tensor) const;

 private:
  TensorAddress(GetDataPointer get, std::size_t offset) : get_(get), offset_(offset) {}

  GetDataPointer get_;
  std::size_t offset_;  // of the C++ tensor in the Python object, in bytes
};

}  // namespace flashoptim

#endif  // FLASHOPTIM_BINDINGS_TENSOR_ADDRESS_H_

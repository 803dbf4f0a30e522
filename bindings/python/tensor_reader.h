// Reads torch tensors without being compiled against torch: through the C functions that their type
// offers for DLPack exchange (torch 2.10 and later), in tens of nanoseconds a tensor.
#ifndef FLASHOPTIM_BINDINGS_TENSOR_READER_H_
#define FLASHOPTIM_BINDINGS_TENSOR_READER_H_

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <vector>

#include "flashoptim/plan.h"
#include "tensor_address.h"

namespace flashoptim {

/// How the elements of a tensor lie in its memory.
struct TensorLayout {
  nanobind::dlpack::device device;
  nanobind::dlpack::dtype dtype;
  std::size_t dimensions;
  std::size_t extents;  // where in `TensorSnapshot::extents` its shape starts; then its strides
  bool is_local;        // these are the elements of a DTensor that this rank holds
  bool has_one_element;
};

/// Where an optimizer's tensors lay when a plan was made. Nothing is kept alive, so that state
/// which is moved elsewhere is freed. Packed, since the time of a check is that of reading it.
struct TensorSnapshot {
  static constexpr std::size_t kUntracked = std::numeric_limits<std::size_t>::max();

  struct Parameter {
    const void* object;
    std::size_t tracked;  // its number among those with state, or kUntracked
  };
  std::vector<Parameter> parameters;      // all of them, in the order of their groups
  std::vector<Py_ssize_t> group_sizes;    // how many of them each group has
  std::vector<std::uintptr_t> addresses;  // of tracked parameters
  std::vector<TensorLayout> layouts;      // likewise
  std::vector<std::int64_t> extents;
  std::vector<std::uintptr_t> state;  // addresses of its tensors, in the order of the dictionaries
};

/// Reads tensors of one type, and DTensors: of these the elements that this rank holds.
class TensorReader {
 public:
  /// `tensor_type` is torch.Tensor. Throws nb::type_error if it does not offer the exchange
  /// functions.
  explicit TensorReader(const nanobind::handle& tensor_type);

  /// Takes addresses of state from TensorAddress rather than from DLPack, if that works for the
  /// samples; returns whether it does.
  bool AskAddresses(TensorAddress::GetDataPointer get, const nanobind::list& samples);

  /// Snapshot of the groups' lists of parameters, of those among them that have state, and of all
  /// tensors in that state.
  TensorSnapshot Snapshot(const nanobind::list& groups, const nanobind::list& tracked,
                          const nanobind::dict& state) const;

  /// Whether a snapshot still holds: the groups' lists hold the same parameters, those with state
  /// and the state lie where they did, and the others have no gradient.
  bool Holds(const TensorSnapshot& snapshot, const nanobind::list& groups,
             const nanobind::dict& state) const;

  /// Takes over the gradients of parameters that lie like the parameter itself, in a dtype that a
  /// plan can read, and clears those that are None. The snapshot must hold. Appends to `stepped`
  /// every parameter with a gradient, and returns the indices of those whose gradient was not taken
  /// over.
  nanobind::list ReadGradients(Plan& plan, const TensorSnapshot& snapshot,
                               const nanobind::list& tracked, nanobind::list& stepped) const;

 private:
  struct View {
    nanobind::dlpack::dltensor tensor{};
    bool is_local = false;  // the elements of a DTensor that this rank holds
  };

  // Fills in a view of a tensor, which the object keeps alive; false if it has no memory to read.
  bool Read(const nanobind::handle& tensor, View& view) const;
  bool ReadMemory(const nanobind::handle& tensor, nanobind::dlpack::dltensor& view) const;

  bool IsTensor(const nanobind::handle& value) const;
  // 0 of one that cannot be read.
  std::uintptr_t AddressOfState(const nanobind::handle& tensor) const;
  // Calls use(address) for each tensor of the state until it returns false.
  template <class Use>
  bool ForState(const nanobind::dict& state, const Use& use) const;
  bool HoldsParameters(const TensorSnapshot& snapshot, const nanobind::list& groups) const;

  using ReadFunction = int (*)(void* object, nanobind::dlpack::dltensor* tensor);

  ReadFunction read_ = nullptr;
  nanobind::object tensor_type_;
  std::optional<TensorAddress> address_;
  nanobind::str grad_ = nanobind::str("grad");
};

}  // namespace flashoptim

#endif  // FLASHOPTIM_BINDINGS_TENSOR_READER_H_

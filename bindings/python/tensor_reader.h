// Reads torch tensors without being compiled against torch: through the C functions that their type
// offers for DLPack exchange (torch 2.10 and later), in tens of nanoseconds a tensor.
#ifndef FLASHOPTIM_BINDINGS_TENSOR_READER_H_
#define FLASHOPTIM_BINDINGS_TENSOR_READER_H_

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <cstddef>
#include <cstdint>
#include <vector>

#include "flashoptim/plan.h"

namespace flashoptim {

/// What an optimizer's tensors were when a plan was made: which objects, without keeping them
/// alive, and where parameters and one tensor of each state lay. Code that moves tensors in place
/// (`t.data = t.data.to(...)`) moves all of a state, so that one of them tells.
struct TensorSnapshot {
  std::vector<std::uintptr_t> parameters;
  struct State {
    std::vector<nanobind::object> references;  // weak
    std::uintptr_t last_address = 0;
  };
  std::vector<State> states;
};

/// Reads tensors of one type.
class TensorReader {
 public:
  /// `tensor_type` is torch.Tensor. Throws nb::type_error if it does not offer the exchange
  /// functions.
  explicit TensorReader(const nanobind::handle& tensor_type);

  /// Fills in a view of the tensor, which the object keeps alive. Throws what torch raises, for
  /// instance for a sparse tensor.
  nanobind::dlpack::dltensor Read(const nanobind::handle& tensor) const;

  /// Snapshot of parameters and of all tensors in an optimizer's state, in the order of its
  /// dictionaries.
  TensorSnapshot Snapshot(const nanobind::list& parameters, const nanobind::dict& state) const;

  /// Whether a snapshot still holds.
  bool Holds(const TensorSnapshot& snapshot, const nanobind::list& parameters,
             const nanobind::dict& state) const;

  /// Takes over the gradients of parameters that lie like the parameter itself, in a dtype that a
  /// plan can read, and clears those that are None. Appends to `stepped` every parameter with a
  /// gradient, and returns the indices of those whose gradient was not taken over.
  nanobind::list ReadGradients(Plan& plan, const nanobind::list& parameters,
                               nanobind::list& stepped) const;

 private:
  bool IsTensor(const nanobind::handle& value) const;
  std::uintptr_t Address(const nanobind::handle& tensor) const;
  bool Holds(const TensorSnapshot::State& snapshot, const nanobind::dict& entries) const;

  using ReadFunction = int (*)(void* object, nanobind::dlpack::dltensor* tensor);

  ReadFunction read_ = nullptr;
  nanobind::object tensor_type_;
};

}  // namespace flashoptim

#endif  // FLASHOPTIM_BINDINGS_TENSOR_READER_H_

// Tensors of LibTorch as the C++ interface describes them.
#ifndef FLASHOPTIM_LIBTORCH_TENSORS_H_
#define FLASHOPTIM_LIBTORCH_TENSORS_H_

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <optional>
#include <string>

#include "flashoptim/state.h"
#include "flashoptim/types.h"

namespace flashoptim {

/// How messages call a parameter.
std::string ParameterName(std::size_t group, std::size_t position);

/// Nothing for a dtype that cannot be stepped.
std::optional<DType> StepDType(at::ScalarType dtype);

/// Describes a parameter. Throws std::invalid_argument for one that cannot be stepped.
Parameter Describe(const at::Tensor& parameter, std::string name);

/// Whether the native side reads a gradient where it lies: strided, on the parameter's device and
/// in its memory order, of a dtype that can be read.
bool LiesLike(const at::Tensor& gradient, const at::Tensor& parameter);

/// The gradient as the native side reads it, copied if its memory order is not the parameter's.
/// Throws std::invalid_argument, naming the parameter, for one that cannot be used.
at::Tensor UsableGradient(const at::Tensor& gradient, const at::Tensor& parameter,
                          const std::string& name);

/// An uninitialised state tensor.
at::Tensor Allocate(const StateEntry& entry);

/// Why a tensor cannot be the state tensor of an entry, wherever it lies; "" if it can.
std::string Misfit(const at::Tensor& tensor, const StateEntry& entry);

/// Whether it lies on the entry's device and in its memory order.
bool LiesAs(const at::Tensor& tensor, const StateEntry& entry);

/// The same tensor where it does, else a copy.
at::Tensor Place(const at::Tensor& tensor, const StateEntry& entry);

}  // namespace flashoptim

#endif  // FLASHOPTIM_LIBTORCH_TENSORS_H_

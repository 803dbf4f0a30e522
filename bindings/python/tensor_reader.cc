#include "tensor_reader.h"

#include <algorithm>
#include <cstdint>
#include <optional>
#include <unordered_map>

namespace nb = nanobind;

namespace flashoptim {
namespace {

using DlTensor = nb::dlpack::dltensor;

// The start of DLPack's table of exchange functions, version 1 (dlpack.h, DLPackExchangeAPI).
struct ExchangeTable {
  std::uint32_t major;
  std::uint32_t minor;
  void* previous;
  void* allocate_managed;
  void* managed_from_object;
  void* managed_to_object;
  int (*tensor_from_object)(void* object, DlTensor* tensor);
};
constexpr std::uint32_t kMajorVersion = 1;

// An empty tensor has no address; its gradient still counts as one.
constexpr std::uintptr_t kEmptyGradient = 1;

std::optional<DType> DTypeOf(const DlTensor& tensor) {
  constexpr auto kBfloat = static_cast<std::uint8_t>(nb::dlpack::dtype_code::Bfloat);
  constexpr auto kFloat = static_cast<std::uint8_t>(nb::dlpack::dtype_code::Float);
  if (tensor.dtype.lanes != 1) return std::nullopt;
  if (tensor.dtype.code == kBfloat && tensor.dtype.bits == 16) return DType::kBFloat16;
  if (tensor.dtype.code == kFloat && tensor.dtype.bits == 16) return DType::kFloat16;
  if (tensor.dtype.code == kFloat && tensor.dtype.bits == 32) return DType::kFloat32;
  return std::nullopt;
}

std::uintptr_t AddressOf(const DlTensor& tensor) {
  return reinterpret_cast<std::uintptr_t>(tensor.data) + tensor.byte_offset;
}

bool IsEmpty(const DlTensor& tensor) {
  return std::any_of(tensor.shape, tensor.shape + tensor.ndim,
                     [](std::int64_t size) { return size == 0; });
}

// A DTensor has no memory of its own: this attribute is the tensor of this rank's elements, and
// that one says how the whole is cut.
constexpr const char* kLocal = "_local_tensor";
constexpr const char* kSpec = "_spec";

// Whether two DTensors are the same part of the whole. Locals of one shape may be different shards,
// or summands of one.
bool AreCutAlike(const nb::handle& a, const nb::handle& b) {
  const nb::object one = a.attr(kSpec);
  const nb::object other = b.attr(kSpec);
  return one.is(other) || (one.attr("placements").equal(other.attr("placements")) &&
                           one.attr("mesh").equal(other.attr("mesh")));
}

bool LiesAs(const DlTensor& tensor, const TensorLayout& layout, const TensorSnapshot& snapshot) {
  if (tensor.device.device_type != layout.device.device_type ||
      tensor.device.device_id != layout.device.device_id ||
      static_cast<std::size_t>(tensor.ndim) != layout.dimensions) {
    return false;
  }
  const std::int64_t* const shape = snapshot.extents.data() + layout.extents;
  const std::int64_t* const strides = shape + layout.dimensions;
  for (std::size_t d = 0; d < layout.dimensions; ++d) {
    // The stride of a single element means nothing: torch gives that of other layouts too.
    if (tensor.shape[d] != shape[d] || (shape[d] != 1 && tensor.strides[d] != strides[d])) {
      return false;
    }
  }
  return true;
}

// Whether a tensor's memory holds the negatives of its elements, which DLPack does not tell.
bool IsNegated(const nb::handle& tensor, bool is_local) {
  const nb::object local = is_local ? tensor.attr(kLocal) : nb::borrow(tensor);
  return nb::cast<bool>(local.attr("is_neg")());
}

}  // namespace

TensorReader::TensorReader(const nb::handle& tensor_type) : tensor_type_(nb::borrow(tensor_type)) {
  const nb::object capsule = nb::getattr(tensor_type, "__dlpack_c_exchange_api__", nb::none());
  const auto* table = static_cast<const ExchangeTable*>(
      PyCapsule_IsValid(capsule.ptr(), "dlpack_exchange_api") != 0
          ? PyCapsule_GetPointer(capsule.ptr(), "dlpack_exchange_api")
          : nullptr);
  if (table == nullptr || table->major != kMajorVersion || table->tensor_from_object == nullptr) {
    throw nb::type_error("the tensor type offers no DLPack exchange functions of version 1");
  }
  read_ = table->tensor_from_object;
}

bool TensorReader::AskAddresses(TensorAddress::GetDataPointer get, const nb::list& samples) {
  const bool of_type = std::all_of(samples.begin(), samples.end(), [&](const nb::handle& sample) {
    return sample.type().is(tensor_type_);
  });
  address_ = of_type ? TensorAddress::Find(get, samples) : std::nullopt;
  return address_.has_value();
}

bool TensorReader::IsTensor(const nb::handle& value) const {
  return value.type().is(tensor_type_) ||
         PyObject_TypeCheck(value.ptr(), reinterpret_cast<PyTypeObject*>(tensor_type_.ptr())) != 0;
}

bool TensorReader::ReadMemory(const nb::handle& tensor, DlTensor& view) const {
  if (read_(tensor.ptr(), &view) == 0) return AddressOf(view) != 0 || IsEmpty(view);
  PyErr_Clear();  // sparse, or on the meta device, say; the caller finds the words
  return false;
}

bool TensorReader::Read(const nb::handle& tensor, View& view) const {
  view.is_local = false;
  if (ReadMemory(tensor, view.tensor)) return true;
  const nb::object local = nb::getattr(tensor, kLocal, nb::none());
  view.is_local = true;
  return !local.is_none() && ReadMemory(local, view.tensor);
}

std::uintptr_t TensorReader::AddressOfState(const nb::handle& tensor) const {
  if (address_ && tensor.type().is(tensor_type_)) return address_->Of(tensor);
  View view;
  return Read(tensor, view) ? AddressOf(view.tensor) : 0;
}

// Dictionaries are walked rather than asked: a tensor's hash is a Python function. All tensors
// count, since any one of them may be moved in place (`t.data = t.data.to(...)`).
template <class Use>
bool TensorReader::ForState(const nb::dict& state, const Use& use) const {
  PyObject* entries = nullptr;
  for (Py_ssize_t i = 0; PyDict_Next(state.ptr(), &i, nullptr, &entries) != 0;) {
    const nb::object kept = nb::borrow(entries);  // reading a subclass may run Python code
    PyObject* value = nullptr;
    for (Py_ssize_t j = 0; PyDict_Next(entries, &j, nullptr, &value) != 0;) {
      if (IsTensor(value) && !use(AddressOfState(value))) return false;
    }
  }
  return true;
}

TensorSnapshot TensorReader::Snapshot(const nb::list& groups, const nb::list& tracked,
                                      const nb::dict& state) const {
  TensorSnapshot snapshot;
  std::unordered_map<const void*, std::size_t> numbers;
  for (const nb::handle parameter : tracked) {
    View view;
    if (!Read(parameter, view)) view = {};
    const DlTensor& tensor = view.tensor;
    const auto dimensions = static_cast<std::size_t>(tensor.ndim);
    numbers.emplace(parameter.ptr(), snapshot.layouts.size());
    snapshot.addresses.push_back(AddressOf(tensor));
    snapshot.layouts.push_back({tensor.device, tensor.dtype, dimensions, snapshot.extents.size(),
                                view.is_local,
                                std::all_of(tensor.shape, tensor.shape + dimensions,
                                            [](std::int64_t size) { return size == 1; })});
    snapshot.extents.insert(snapshot.extents.end(), tensor.shape, tensor.shape + dimensions);
    snapshot.extents.insert(snapshot.extents.end(), tensor.strides, tensor.strides + dimensions);
  }
  for (const nb::handle group : groups) {
    const auto parameters = nb::cast<nb::list>(group);
    snapshot.group_sizes.push_back(static_cast<Py_ssize_t>(parameters.size()));
    for (const nb::handle parameter : parameters) {
      const auto number = numbers.find(parameter.ptr());
      snapshot.parameters.push_back(
          {parameter.ptr(), number == numbers.end() ? TensorSnapshot::kUntracked : number->second});
    }
  }
  ForState(state, [&](std::uintptr_t address) {
    snapshot.state.push_back(address);
    return true;
  });
  return snapshot;
}

bool TensorReader::HoldsParameters(const TensorSnapshot& snapshot, const nb::list& groups) const {
  if (groups.size() != snapshot.group_sizes.size()) return false;
  auto expected = snapshot.parameters.begin();
  auto size = snapshot.group_sizes.begin();
  for (const nb::handle group : groups) {
    const auto sequence =
        nb::steal(PySequence_Fast(group.ptr(), "the params of a group must be a list"));
    if (!sequence.is_valid()) throw nb::python_error();
    if (PySequence_Fast_GET_SIZE(sequence.ptr()) != *size++) return false;
    for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(sequence.ptr()); ++i) {
      const nb::handle parameter = PySequence_Fast_GET_ITEM(sequence.ptr(), i);
      // Though the sizes agree: reading a gradient may run Python code that changes the list.
      if (expected == snapshot.parameters.end() || parameter.ptr() != expected->object) {
        return false;
      }
      const std::size_t number = (expected++)->tracked;
      if (number == TensorSnapshot::kUntracked) {
        if (!parameter.attr(grad_).is_none()) return false;
        continue;
      }
      const TensorLayout& layout = snapshot.layouts[number];
      View view;
      if (!Read(parameter, view)) view = {};
      if (AddressOf(view.tensor) != snapshot.addresses[number] ||
          view.tensor.dtype != layout.dtype || !LiesAs(view.tensor, layout, snapshot) ||
          view.is_local != layout.is_local) {
        return false;
      }
    }
  }
  return expected == snapshot.parameters.end();
}

bool TensorReader::Holds(const TensorSnapshot& snapshot, const nb::list& groups,
                         const nb::dict& state) const {
  if (!HoldsParameters(snapshot, groups)) return false;
  auto expected = snapshot.state.begin();
  const bool all = ForState(state, [&](std::uintptr_t address) {
    return expected != snapshot.state.end() && *expected++ == address;
  });
  return all && expected == snapshot.state.end();
}

nb::list TensorReader::ReadGradients(Plan& plan, const TensorSnapshot& snapshot,
                                     const nb::list& tracked, nb::list& stepped) const {
  nb::list others;
  for (std::size_t i = 0; i < tracked.size(); ++i) {
    const nb::handle parameter = tracked[i];
    const nb::object gradient = parameter.attr(grad_);
    if (gradient.is_none()) {
      plan.SetGradient(i, {});
      continue;
    }
    stepped.append(parameter);
    const TensorLayout& layout = snapshot.layouts[i];
    View view;
    const auto dtype = Read(gradient, view) ? DTypeOf(view.tensor) : std::nullopt;
    // Negated are the imaginary parts of conjugates. With more elements than one they lie otherwise
    // than a parameter, and asking all gradients would double the time that reading one takes.
    if (!dtype || !LiesAs(view.tensor, layout, snapshot) || view.is_local != layout.is_local ||
        (layout.is_local && !AreCutAlike(gradient, parameter)) ||
        (layout.has_one_element && IsNegated(gradient, view.is_local))) {
      others.append(i);
      continue;
    }
    const std::uintptr_t address = AddressOf(view.tensor);
    // NOLINTNEXTLINE(performance-no-int-to-ptr): torch's pointer with its offset
    const auto* data = reinterpret_cast<const void*>(address == 0 ? kEmptyGradient : address);
    plan.SetGradient(i, {data, *dtype});
  }
  return others;
}

}  // namespace flashoptim

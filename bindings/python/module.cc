// The Python extension module: a thin cover of include/flashoptim. Tensors come as addresses, so
// that it is not compiled against torch and one build serves every torch.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <cstdint>
#include <tuple>
#include <vector>

#include "checkpoint.h"
#include "flashoptim/convert.h"
#include "flashoptim/layout.h"
#include "flashoptim/plan.h"
#include "flashoptim/runtime.h"
#include "flashoptim/types.h"
#include "tensor_reader.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace flashoptim {
namespace {

template <class T = void>
T* Pointer(std::uintptr_t address) {
  return reinterpret_cast<T*>(address);  // NOLINT(performance-no-int-to-ptr): that is the interface
}

// An attribute of a struct that holds an address, as an int.
template <class T>
void DefAddress(nb::class_<TensorBinding>& binding, const char* name, T* TensorBinding::*member) {
  binding.def_prop_rw(
      name,
      [member](const TensorBinding& self) {
        return reinterpret_cast<std::uintptr_t>(self.*member);
      },
      [member](TensorBinding& self, std::uintptr_t address) {
        self.*member = Pointer<T>(address);
      });
}

Geometry GeometryFromPython(const std::vector<std::int64_t>& sizes,
                            const std::vector<std::int64_t>& strides) {
  return GeometryOf(sizes, strides);
}

std::uint64_t StepPlan(Plan& plan) {
  const nb::gil_scoped_release release;
  return plan.Step();
}

void BindEnumerations(nb::module_& m) {
  nb::enum_<DType>(m, "DType", nb::is_arithmetic())
      .value("BFLOAT16", DType::kBFloat16)
      .value("FLOAT16", DType::kFloat16)
      .value("FLOAT32", DType::kFloat32);
  nb::enum_<Codec>(m, "Codec")
      .value("NONE", Codec::kNone)
      .value("ROOT", Codec::kRoot)
      .value("SOFTSIGN", Codec::kSoftsign);
  nb::enum_<Rule>(m, "Rule")
      .value("SGD", Rule::kSgd)
      .value("ADAM", Rule::kAdam)
      .value("LION", Rule::kLion);
  nb::enum_<WeightDecay>(m, "WeightDecay")
      .value("COUPLED", WeightDecay::kCoupled)
      .value("DECOUPLED", WeightDecay::kDecoupled)
      .value("FULLY_DECOUPLED", WeightDecay::kFullyDecoupled);
  nb::enum_<Nonfinite>(m, "Nonfinite")
      .value("PROPAGATE", Nonfinite::kPropagate)
      .value("SKIP", Nonfinite::kSkip)
      .value("ERROR", Nonfinite::kError);
  nb::enum_<DeviceType>(m, "DeviceType")
      .value("CPU", DeviceType::kCpu)
      .value("CUDA", DeviceType::kCuda);
  nb::enum_<Moment>(m, "Moment").value("FIRST", Moment::kFirst).value("SECOND", Moment::kSecond);
}

void BindLayout(nb::module_& m) {
  m.attr("FORMAT_VERSION") = kFormatVersion;
  m.attr("GROUP_SIZE") = kGroupSize;
  m.def(
      "geometry",
      [](const std::vector<std::int64_t>& sizes, const std::vector<std::int64_t>& strides) {
        const Geometry g = GeometryFromPython(sizes, strides);
        return std::make_tuple(g.rows, g.row_length, g.groups_per_row);
      },
      "sizes"_a, "strides"_a,
      "Rows, row length and groups per row of a dense tensor (docs/format.md, section 2). "
      "ValueError if it has holes or overlaps.");
  m.def(
      "effective_codec",
      [](Codec asked, std::uint64_t dimensions, std::uint64_t row_length) {
        return EffectiveCodec(asked, dimensions, {1, row_length, 0});
      },
      "asked"_a, "dimensions"_a, "row_length"_a,
      "The codec that a tensor really gets: NONE where quantising gains nothing.");
  m.def("fresh_first_scale", &FreshFirstScale, "Scale of a fresh first moment.");
  m.def("fresh_second_scale", &FreshSecondScale, "codec"_a, "Scale of a fresh second moment.");
}

void BindRuntime(nb::module_& m) {
  m.def("version", &Version, "The library's version.");
  m.def("cpu_targets", &CpuTargets, "Instruction sets that this machine can run, best first.");
  m.def("cpu_target", &CpuTarget,
        "The one in use. FLASHOPTIM_CPU_TARGET forces one; ValueError if it cannot run here.");
  m.def("set_cpu_target", &SetCpuTarget, "name"_a, "Forces one for this process.");
  m.def("cpu_threads", &CpuThreads, "Threads of a CPU step.");
  m.def("set_cpu_threads", &SetCpuThreads, "count"_a, "Sets the threads of a CPU step.");
  m.def("cuda_available", &CudaAvailable, "Whether CUDA tensors can be stepped.");
  m.def("cuda_status", &CudaStatus, "Why, or why not, in a sentence.");
  m.def("load_cuda_kernels", &LoadCudaKernels, "rule"_a, "device_index"_a,
        "Loads the kernels of a rule on a GPU, which else the first step does.");
}

void BindPlan(nb::module_& m) {
  nb::class_<TensorBinding> binding(m, "TensorBinding",
                                    "Addresses of one parameter and its state (plan.h).");
  binding.def(nb::init<>())
      .def_rw("name", &TensorBinding::name)
      .def_rw("device_type", &TensorBinding::device_type)
      .def_rw("device_index", &TensorBinding::device_index)
      .def_rw("weight_dtype", &TensorBinding::weight_dtype)
      .def_rw("correction_bits", &TensorBinding::correction_bits)
      .def_rw("codec", &TensorBinding::codec)
      .def_rw("rows", &TensorBinding::rows)
      .def_rw("row_length", &TensorBinding::row_length)
      .def_rw("first_group", &TensorBinding::first_group)
      .def_rw("group_stride", &TensorBinding::group_stride)
      .def_rw("first_in_group", &TensorBinding::first_in_group)
      .def_rw("stream_key", &TensorBinding::stream_key)
      .def_rw("step_on_device", &TensorBinding::step_on_device)
      .def_rw("parameter_group", &TensorBinding::parameter_group);
  DefAddress(binding, "weight", &TensorBinding::weight);
  DefAddress(binding, "correction", &TensorBinding::correction);
  DefAddress(binding, "first_moment", &TensorBinding::first_moment);
  DefAddress(binding, "first_moment_scale", &TensorBinding::first_moment_scale);
  DefAddress(binding, "second_moment", &TensorBinding::second_moment);
  DefAddress(binding, "second_moment_scale", &TensorBinding::second_moment_scale);
  DefAddress(binding, "maximum", &TensorBinding::maximum);
  DefAddress(binding, "maximum_scale", &TensorBinding::maximum_scale);
  DefAddress(binding, "step", &TensorBinding::step);

  nb::class_<Hyperparameters>(m, "Hyperparameters",
                              "Hyper-parameters of one parameter group (plan.h).")
      .def(nb::init<>())
      .def_rw("lr", &Hyperparameters::lr)
      .def_rw("initial_lr", &Hyperparameters::initial_lr)
      .def_rw("beta1", &Hyperparameters::beta1)
      .def_rw("beta2", &Hyperparameters::beta2)
      .def_rw("eps", &Hyperparameters::eps)
      .def_rw("momentum", &Hyperparameters::momentum)
      .def_rw("dampening", &Hyperparameters::dampening)
      .def_rw("weight_decay", &Hyperparameters::weight_decay)
      .def_rw("weight_decay_kind", &Hyperparameters::weight_decay_kind)
      .def_rw("nesterov", &Hyperparameters::nesterov)
      .def_rw("maximize", &Hyperparameters::maximize)
      .def_rw("stochastic_rounding", &Hyperparameters::stochastic_rounding)
      .def_rw("nonfinite", &Hyperparameters::nonfinite)
      .def_rw("seed", &Hyperparameters::seed);

  m.def("check_hyperparameters", &CheckHyperparameters, "rule"_a, "hyperparameters"_a,
        "ValueError naming the hyper-parameter that is out of range.");

  nb::class_<Plan>(m, "Plan", "The tensors of one optimizer, ready to be stepped.")
      .def(nb::init<Rule, std::vector<TensorBinding>, std::uint32_t>(), "rule"_a, "tensors"_a,
           "parameter_groups"_a)
      .def("__len__", &Plan::size)
      .def("set_hyperparameters", &Plan::SetHyperparameters, "parameter_group"_a,
           "hyperparameters"_a)
      .def(
          "set_stream",
          [](Plan& plan, std::int32_t device_index, std::uintptr_t stream) {
            plan.SetStream(device_index, Pointer<>(stream));
          },
          "device_index"_a, "stream"_a,
          "Sets the CUDA stream, as an int, on which the tensors of a GPU are stepped.")
      .def(
          "set_device_learning_rate",
          [](Plan& plan, std::uint32_t group, std::uintptr_t lr) {
            plan.SetDeviceLearningRate(group, Pointer<const float>(lr));
          },
          "parameter_group"_a, "lr"_a,
          "Makes a group read its learning rate from a float on the GPU; address 0: no longer.")
      .def("set_gradient_scale", &Plan::SetGradientScale, "scale"_a,
           "Divides the gradients of tensors whose step count is on the host.")
      .def(
          "set_gradient_scaling",
          [](Plan& plan, std::int32_t device_index, std::uintptr_t scale,
             std::uintptr_t found_inf) {
            plan.SetGradientScaling(device_index, Pointer<const float>(scale),
                                    Pointer<const float>(found_inf));
          },
          "device_index"_a, "scale"_a, "found_inf"_a,
          "What GradScaler gives for a GPU, as addresses of floats there; 0: neither.")
      .def(
          "set_gradient",
          [](Plan& plan, std::size_t tensor, std::uintptr_t address, DType dtype) {
            plan.SetGradient(tensor, {Pointer<>(address), dtype});
          },
          "tensor"_a, "address"_a, "dtype"_a,
          "Sets a tensor's gradient for the steps that follow; address 0: none.")
      .def("step", &StepPlan,
           "Steps every tensor that has a gradient. Returns the number of tensors that "
           "nonfinite='skip' left alone. RuntimeError before anything is written if "
           "nonfinite='error' finds a gradient that is not finite.");

  [[maybe_unused]] const nb::class_<TensorSnapshot> snapshot(
      m, "TensorSnapshot", "What tensors were when a plan was made.");
  nb::class_<TensorReader>(m, "TensorReader",
                           "Reads torch tensors through DLPack's C functions (tensor_reader.h).")
      .def(nb::init<nb::handle>(), "tensor_type"_a,
           "TypeError if the type does not offer them (torch before 2.10).")
      .def(
          "ask_addresses",
          [](TensorReader& self, std::uintptr_t function, const nb::list& samples) {
            // NOLINTNEXTLINE(performance-no-int-to-ptr): ctypes gives numbers
            auto* get = reinterpret_cast<TensorAddress::GetDataPointer>(function);
            return self.AskAddresses(get, samples);
          },
          "function"_a, "samples"_a,
          "Asks aoti_torch_get_data_ptr, at this address, for addresses of state, which is faster "
          "than DLPack; returns whether that works for the samples (tensor_address.h).")
      .def("snapshot", &TensorReader::Snapshot, "groups"_a, "tracked"_a, "state"_a,
           "What the parameters of the groups, one list each, those of them with state, and all "
           "tensors in that state are now.")
      .def("holds", &TensorReader::Holds, "snapshot"_a, "groups"_a, "state"_a,
           "Whether a snapshot still holds for the parameters of the groups, one list each, and "
           "their state, and parameters without state have no gradient.")
      .def("read_gradients", &TensorReader::ReadGradients, "plan"_a, "snapshot"_a, "tracked"_a,
           "stepped"_a,
           "Sets the plan's gradients from parameters; appends those with a gradient to `stepped` "
           "and returns the indices of gradients that it could not read in place.");
}

void BindConversions(nb::module_& m) {
  m.def(
      "join_master_weights",
      [](std::uintptr_t weight, DType dtype, std::uintptr_t correction,
         std::int32_t correction_bits, std::uint64_t count, std::uintptr_t master) {
        const nb::gil_scoped_release release;
        JoinMasterWeights({Pointer<>(weight), dtype, Pointer<>(correction), correction_bits}, count,
                          Pointer<float>(master));
      },
      "weight"_a, "dtype"_a, "correction"_a, "correction_bits"_a, "count"_a, "master"_a,
      "fp32 master weights of a weight and its correction; addresses in host memory.");
  m.def(
      "split_master_weights",
      [](std::uintptr_t master, std::uint64_t count, std::uintptr_t weight, DType dtype,
         std::uintptr_t correction, std::int32_t correction_bits) {
        const nb::gil_scoped_release release;
        SplitMasterWeights(Pointer<const float>(master), count,
                           {Pointer<>(weight), dtype, Pointer<>(correction), correction_bits});
      },
      "master"_a, "count"_a, "weight"_a, "dtype"_a, "correction"_a, "correction_bits"_a,
      "Splits fp32 master weights into weight and correction, to nearest.");
  m.def(
      "decode_moments",
      [](Moment moment, Codec codec, std::uint64_t rows, std::uint64_t row_length,
         std::uintptr_t codes, std::uintptr_t scales, std::uintptr_t values) {
        const nb::gil_scoped_release release;
        DecodeMoments(moment, codec, {rows, row_length, (row_length + kGroupSize - 1) / kGroupSize},
                      Pointer<>(codes), Pointer<float>(scales), Pointer<float>(values));
      },
      "moment"_a, "codec"_a, "rows"_a, "row_length"_a, "codes"_a, "scales"_a, "values"_a,
      "fp32 moments of codes and scales; addresses in host memory.");
  m.def(
      "encode_moments",
      [](Moment moment, Codec codec, std::uint64_t rows, std::uint64_t row_length,
         std::uintptr_t values, std::uintptr_t codes, std::uintptr_t scales) {
        const nb::gil_scoped_release release;
        EncodeMoments(moment, codec, {rows, row_length, (row_length + kGroupSize - 1) / kGroupSize},
                      Pointer<const float>(values), Pointer<>(codes), Pointer<float>(scales));
      },
      "moment"_a, "codec"_a, "rows"_a, "row_length"_a, "values"_a, "codes"_a, "scales"_a,
      "Codes and scales of fp32 moments, to nearest.");
}

}  // namespace
}  // namespace flashoptim

NB_MODULE(_C, m) {
  // Objects that live as long as the interpreter are no leaks.
  nanobind::set_leak_warnings(false);
  m.doc() = "Native part of flashoptim_cpp.";
  flashoptim::BindEnumerations(m);
  flashoptim::BindLayout(m);
  flashoptim::BindRuntime(m);
  flashoptim::BindPlan(m);
  flashoptim::BindConversions(m);
  flashoptim::BindCheckpoint(m);
}

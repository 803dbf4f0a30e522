#include "flashoptim/optimizer.h"

#include <memory>
#include <optional>
#include <span>

#include "capi/guard.h"
#include "capi/handles.h"
#include "capi/translate.h"
#include "flashoptim/optimizer_file.h"

using flashoptim::capi::CheckPointer;
using flashoptim::capi::CheckStruct;
using flashoptim::capi::DTypeOf;
using flashoptim::capi::Fill;
using flashoptim::capi::Guarded;

namespace {

template <class Handle>
auto& Of(Handle* handle) {
  CheckPointer(handle, "optimizer");
  return handle->optimizer;
}

const flashoptim::StateEntry& StateAt(const flashoptim::Optimizer& optimizer, std::size_t index) {
  const auto state = optimizer.state();
  if (index >= state.size()) {
    throw std::invalid_argument("state tensor " + std::to_string(index) + " of " +
                                std::to_string(state.size()));
  }
  return state[index];
}

const flashoptim::StateEntry& StateOfSize(const flashoptim::Optimizer& optimizer, std::size_t index,
                                          std::size_t bytes) {
  const flashoptim::StateEntry& tensor = StateAt(optimizer, index);
  if (bytes != tensor.bytes) {
    throw std::invalid_argument("tensor '" + optimizer.parameter(tensor.parameter).name +
                                "': its '" + tensor.name + "' has " + std::to_string(tensor.bytes) +
                                " bytes, not " + std::to_string(bytes));
  }
  return tensor;
}

void CheckWeightBytes(const flashoptim::Optimizer& optimizer, std::size_t parameter,
                      std::size_t bytes) {
  const std::uint64_t wanted = optimizer.Memory(parameter).weights;
  if (bytes != wanted) {
    throw std::invalid_argument("tensor '" + optimizer.parameter(parameter).name +
                                "': its weight has " + std::to_string(wanted) + " bytes, not " +
                                std::to_string(bytes));
  }
}

}  // namespace

void flashoptim_optimizer_destroy(flashoptim_optimizer* optimizer) {
  const std::unique_ptr<flashoptim_optimizer> owned(optimizer);
}

flashoptim_status flashoptim_set_gradient(flashoptim_optimizer* optimizer, size_t parameter,
                                          const void* data, int32_t dtype) {
  return Guarded([&] { Of(optimizer).SetGradient(parameter, data, DTypeOf(dtype)); });
}

flashoptim_status flashoptim_clear_gradient(flashoptim_optimizer* optimizer, size_t parameter) {
  return Guarded([&] { Of(optimizer).ClearGradient(parameter); });
}

flashoptim_status flashoptim_set_gradient_scale(flashoptim_optimizer* optimizer, float scale) {
  return Guarded([&] { Of(optimizer).SetGradientScale(scale); });
}

flashoptim_status flashoptim_set_stream(flashoptim_optimizer* optimizer, int32_t device_index,
                                        void* stream) {
  return Guarded([&] { Of(optimizer).SetStream(device_index, stream); });
}

flashoptim_status flashoptim_step(flashoptim_optimizer* optimizer, uint64_t* skipped) {
  return Guarded([&] {
    const std::uint64_t count = Of(optimizer).Step();
    if (skipped != nullptr) *skipped = count;
  });
}

flashoptim_status flashoptim_get_options(const flashoptim_optimizer* optimizer, size_t group,
                                         flashoptim_options* options) {
  return Guarded([&] {
    CheckStruct(options, "options");
    Fill(Of(optimizer).options(group), *options);
  });
}

flashoptim_status flashoptim_set_options(flashoptim_optimizer* optimizer, size_t group,
                                         const flashoptim_options* options) {
  return Guarded([&] {
    CheckStruct(options, "options");
    Of(optimizer).SetOptions(group, flashoptim::capi::OptionsOf(*options));
  });
}

flashoptim_status flashoptim_set_lr(flashoptim_optimizer* optimizer, size_t group, double lr) {
  return Guarded([&] { Of(optimizer).SetLr(group, lr); });
}

flashoptim_status flashoptim_group_count(const flashoptim_optimizer* optimizer, size_t* count) {
  return Guarded([&] {
    CheckPointer(count, "count");
    *count = Of(optimizer).groups();
  });
}

flashoptim_status flashoptim_parameter(const flashoptim_optimizer* optimizer, size_t parameter,
                                       flashoptim_tensor* tensor, size_t* group) {
  return Guarded([&] {
    CheckStruct(tensor, "tensor");
    Fill(Of(optimizer).parameter(parameter), *tensor);
    if (group != nullptr) *group = optimizer->optimizer.GroupOf(parameter);
  });
}

flashoptim_status flashoptim_parameter_count(const flashoptim_optimizer* optimizer, size_t* count) {
  return Guarded([&] {
    CheckPointer(count, "count");
    *count = Of(optimizer).size();
  });
}

flashoptim_status flashoptim_find_parameter(const flashoptim_optimizer* optimizer, const char* name,
                                            size_t* parameter) {
  return Guarded([&] {
    CheckPointer(name, "name");
    CheckPointer(parameter, "parameter");
    const std::optional<std::size_t> found = Of(optimizer).Find(name);
    if (!found) {
      throw std::invalid_argument("no parameter is named '" + std::string(name) +
                                  "'; names are those that the optimizer was made with");
    }
    *parameter = *found;
  });
}

flashoptim_status flashoptim_step_count(const flashoptim_optimizer* optimizer, size_t parameter,
                                        uint64_t* count) {
  return Guarded([&] {
    CheckPointer(count, "count");
    *count = Of(optimizer).StepCount(parameter);
  });
}

flashoptim_status flashoptim_state_count(const flashoptim_optimizer* optimizer, size_t* count) {
  return Guarded([&] {
    CheckPointer(count, "count");
    *count = Of(optimizer).state().size();
  });
}

flashoptim_status flashoptim_state(const flashoptim_optimizer* optimizer, size_t index,
                                   flashoptim_state_tensor* tensor) {
  return Guarded([&] {
    CheckStruct(tensor, "tensor");
    Fill(StateAt(Of(optimizer), index), *tensor);
  });
}

flashoptim_status flashoptim_find_state(const flashoptim_optimizer* optimizer, size_t parameter,
                                        const char* name, size_t* index) {
  return Guarded([&] {
    CheckPointer(name, "name");
    CheckPointer(index, "index");
    const flashoptim::Optimizer& found_in = Of(optimizer);
    const flashoptim::StateEntry* found = found_in.FindState(parameter, name);
    if (found == nullptr) {
      throw std::invalid_argument("tensor '" + found_in.parameter(parameter).name +
                                  "': its state has no '" + name +
                                  "'; docs/format.md, section 9, lists the names");
    }
    *index = static_cast<std::size_t>(found - found_in.state().data());
  });
}

flashoptim_status flashoptim_read_state(const flashoptim_optimizer* optimizer, size_t index,
                                        void* target, size_t bytes) {
  return Guarded([&] {
    if (bytes != 0) CheckPointer(target, "target");
    const flashoptim::Optimizer& own = Of(optimizer);
    own.ReadState(StateOfSize(own, index, bytes), target);
  });
}

flashoptim_status flashoptim_write_state(flashoptim_optimizer* optimizer, size_t index,
                                         const void* source, size_t bytes) {
  return Guarded([&] {
    if (bytes != 0) CheckPointer(source, "source");
    flashoptim::Optimizer& own = Of(optimizer);
    own.WriteState(StateOfSize(own, index, bytes), source);
  });
}

flashoptim_status flashoptim_read_weight(const flashoptim_optimizer* optimizer, size_t parameter,
                                         void* target, size_t bytes) {
  return Guarded([&] {
    if (bytes != 0) CheckPointer(target, "target");
    const flashoptim::Optimizer& own = Of(optimizer);
    CheckWeightBytes(own, parameter, bytes);
    own.ReadWeight(parameter, target);
  });
}

flashoptim_status flashoptim_write_weight(flashoptim_optimizer* optimizer, size_t parameter,
                                          const void* source, size_t bytes) {
  return Guarded([&] {
    if (bytes != 0) CheckPointer(source, "source");
    flashoptim::Optimizer& own = Of(optimizer);
    CheckWeightBytes(own, parameter, bytes);
    own.WriteWeight(parameter, source);
  });
}

flashoptim_status flashoptim_read_master_weights(const flashoptim_optimizer* optimizer,
                                                 size_t parameter, float* master, size_t count) {
  return Guarded([&] {
    if (count != 0) CheckPointer(master, "master");
    Of(optimizer).ReadMasterWeights(parameter, {master, count});
  });
}

flashoptim_status flashoptim_write_master_weights(flashoptim_optimizer* optimizer, size_t parameter,
                                                  const float* master, size_t count) {
  return Guarded([&] {
    if (count != 0) CheckPointer(master, "master");
    Of(optimizer).WriteMasterWeights(parameter, {master, count});
  });
}

flashoptim_status flashoptim_save(const flashoptim_optimizer* optimizer, const char* path) {
  return Guarded([&] {
    CheckPointer(path, "path");
    flashoptim::SaveOptimizer(Of(optimizer), path);
  });
}

flashoptim_status flashoptim_save_with(const flashoptim_optimizer* optimizer, const char* path,
                                       const flashoptim_save_options* options) {
  return Guarded([&] {
    CheckPointer(path, "path");
    CheckStruct(options, "options");
    flashoptim::SaveOptimizer(Of(optimizer), path, flashoptim::capi::WriteOptionsOf(*options));
  });
}

flashoptim_status flashoptim_load(flashoptim_optimizer* optimizer, const char* path) {
  return Guarded([&] {
    CheckPointer(path, "path");
    flashoptim::LoadOptimizer(Of(optimizer), path);
  });
}

flashoptim_status flashoptim_load_options(flashoptim_optimizer* optimizer, const char* path) {
  return Guarded([&] {
    CheckPointer(path, "path");
    flashoptim::LoadOptions(Of(optimizer), path);
  });
}

flashoptim_status flashoptim_parameter_memory(const flashoptim_optimizer* optimizer,
                                              size_t parameter, flashoptim_memory* memory) {
  return Guarded([&] {
    CheckStruct(memory, "memory");
    Fill(Of(optimizer).Memory(parameter), *memory);
  });
}

flashoptim_status flashoptim_memory_use(const flashoptim_optimizer* optimizer,
                                        flashoptim_memory* memory) {
  return Guarded([&] {
    CheckStruct(memory, "memory");
    Fill(Of(optimizer).Memory(), *memory);
  });
}

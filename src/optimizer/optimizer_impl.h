// What an Optimizer is made of.
#ifndef FLASHOPTIM_OPTIMIZER_OPTIMIZER_IMPL_H_
#define FLASHOPTIM_OPTIMIZER_OPTIMIZER_IMPL_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "flashoptim/convert.h"
#include "flashoptim/optimizer.h"
#include "flashoptim/plan.h"
#include "optimizer/group_setup.h"
#include "optimizer/memory.h"
#include "optimizer/parameter_layout.h"

namespace flashoptim {

/// Begins the message of an error about a parameter.
std::string Quoted(const Parameter& parameter);

/// Throws std::invalid_argument if it is no step count.
void CheckStep(const Parameter& parameter, float step);

struct Optimizer::Impl {
  struct Entry {
    Parameter parameter;
    std::uint32_t group = 0;
    ParameterLayout layout;
    std::size_t first_state = 0;
    std::size_t states = 0;
    Gradient gradient;
  };
  struct Stream {
    std::int32_t device;
    void* stream;
  };

  std::vector<Options> options;
  std::vector<GroupSetup> setups;
  std::vector<Entry> entries;
  std::map<std::string, std::size_t, std::less<>> by_name;
  std::vector<StateEntry> state;
  std::vector<Block> blocks;
  std::vector<Stream> streams;  // one for each GPU
  float gradient_scale = 1.0F;
  std::optional<Plan> plan;  // empty after a change that a plan cannot follow

  Impl(std::vector<ParameterGroup>&& groups, const StateMemory& memory);

  void MakePlan();

  std::span<StateEntry> StateOf(std::size_t i);
  float* StepOf(std::size_t i) const;
  Stream* StreamOf(Device device);
  void* StreamHandle(Device device);

  /// Calls body(storage, first, count) for pieces of a weight and its correction that lie in host
  /// memory; on a GPU the pieces are copies, which are written back if `write`.
  void ForPieces(
      std::size_t i, bool write,
      const std::function<void(const WeightStorage&, std::uint64_t, std::uint64_t)>& body);

  /// These return their argument, or throw std::invalid_argument.
  std::size_t Checked(std::size_t i) const;
  std::size_t CheckedGroup(std::size_t g) const;
  void CheckMaster(std::size_t i, std::size_t count) const;
  void CheckOwn(const StateEntry& tensor) const;

 private:
  void Describe(std::vector<ParameterGroup>&& groups);
  void TakeMemory(const StateMemory& memory);
  void PrepareDevices();
  TensorBinding BindingOf(std::size_t i) const;
  template <class T>
  T* Address(std::size_t i, StateKind kind) const;
};

}  // namespace flashoptim

#endif  // FLASHOPTIM_OPTIMIZER_OPTIMIZER_IMPL_H_

// What a FlashOptimizer prepares once for the steps that follow.
#ifndef FLASHOPTIM_LIBTORCH_PLAN_H_
#define FLASHOPTIM_LIBTORCH_PLAN_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "flashoptim/optimizer.h"
#include "flashoptim/torch_adapter.h"

namespace flashoptim {

/// A parameter with state, as it was when the plan was made.
struct Slot {
  torch::Tensor parameter;
  torch::Tensor seen;  ///< the same memory, which a change of the parameter does not follow
  std::size_t group = 0;
  std::size_t position = 0;
  const FlashParamState* state = nullptr;

  std::string name() const;
  bool Unchanged() const;
};

/// Throws std::invalid_argument if a group was given options of another kind of optimizer.
FlashOptions& OptionsOf(torch::optim::OptimizerParamGroup& group, std::size_t index);

/// Why a parameter's state is not what a layout asks for, wherever its tensors lie; "" if it is.
std::string Misfit(const FlashParamState& state, std::span<const StateEntry> entries);

struct FlashOptimizer::Plan {
  std::vector<Slot> slots;
  std::vector<Options> options;  ///< of the groups, as the native optimizer has them
  std::vector<std::int32_t> gpus;
  std::vector<torch::Tensor> copies;  ///< gradients in another memory order, until they are read
  /// States that were made with the plan, by parameter, until GiveStates.
  std::vector<std::pair<void*, std::unique_ptr<FlashParamState>>> fresh;
  std::unique_ptr<flashoptim::Optimizer> native;  ///< null without parameters

  void GiveStates(StateMap& states);
  void FollowOptions(const std::vector<Options>& wanted);
  void SetGradients();
  std::uint64_t Step();
};

}  // namespace flashoptim

#endif  // FLASHOPTIM_LIBTORCH_PLAN_H_

// The smallest plan: SGD without momentum on one fp32 weight.
#ifndef FLASHOPTIM_TESTS_ONE_WEIGHT_PLAN_H_
#define FLASHOPTIM_TESTS_ONE_WEIGHT_PLAN_H_

#include "flashoptim/plan.h"

namespace flashoptim {

/// A plan of the tensor 'w' with one element; both addresses must outlive it.
inline Plan OneWeightPlan(float* weight, float* step) {
  TensorBinding binding;
  binding.name = "w";
  binding.weight = weight;
  binding.rows = 1;
  binding.row_length = 1;
  binding.step = step;
  return {Rule::kSgd, {binding}, 1};
}

}  // namespace flashoptim

#endif  // FLASHOPTIM_TESTS_ONE_WEIGHT_PLAN_H_

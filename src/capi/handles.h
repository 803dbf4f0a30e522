// What the opaque handles of flashoptim.h are.
#ifndef FLASHOPTIM_CAPI_HANDLES_H_
#define FLASHOPTIM_CAPI_HANDLES_H_

#include <vector>

#include "flashoptim/flashoptim.h"
#include "flashoptim/optimizer.h"

struct flashoptim_builder {
  std::vector<flashoptim::ParameterGroup> groups;
  flashoptim::StateMemory memory;
  // Of the groups as they are; empty until it is asked for.
  std::vector<flashoptim::StateEntry> layout;
};

struct flashoptim_optimizer {
  flashoptim::Optimizer optimizer;
};

#endif  // FLASHOPTIM_CAPI_HANDLES_H_

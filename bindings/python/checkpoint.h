// Functions of checkpoint files, as Python calls them.
#ifndef FLASHOPTIM_BINDINGS_CHECKPOINT_H_
#define FLASHOPTIM_BINDINGS_CHECKPOINT_H_

#include <nanobind/nanobind.h>

namespace flashoptim {

void BindCheckpoint(nanobind::module_& m);

}  // namespace flashoptim

#endif  // FLASHOPTIM_BINDINGS_CHECKPOINT_H_

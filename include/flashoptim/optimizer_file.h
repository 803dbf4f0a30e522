// Saving and loading an optimizer (docs/format.md, section 11).
#ifndef FLASHOPTIM_OPTIMIZER_FILE_H_
#define FLASHOPTIM_OPTIMIZER_FILE_H_

#include <string>
#include <vector>

#include "flashoptim/checkpoint.h"
#include "flashoptim/optimizer.h"
#include "flashoptim/options.h"

namespace flashoptim {

/// Writes weights, state and options, bit for bit. `path` ends as for WriteCheckpoint; a process
/// killed at any moment leaves the old file or the new one. Throws FileError; DeviceError.
void SaveOptimizer(const Optimizer& optimizer, const std::string& path,
                   const WriteOptions& options = {});

/// Reads weights and state into an optimizer of the same tensors: names, shapes, dtypes, rule and
/// form of the state must be those of the file. Options stay those of the optimizer
/// (see LoadOptions). Parameters of
/// the file that the optimizer does not have are an error, and the other way round. A file without
/// weights changes the state only.
///
/// Everything is checked, values included, before the first byte is written. Throws FileError,
/// naming the file, the tensor and the remedy; DeviceError.
void LoadOptimizer(Optimizer& optimizer, const std::string& path, const ReadOptions& options = {});

/// The options that the groups of a file had, in its order: to make an optimizer with before its
/// state is loaded. Throws FileError.
std::vector<Options> SavedOptions(const std::string& path);

/// Gives each group the options that the file has for it: learning rates as schedules left them,
/// for instance. All of them or, on an error, none. Throws FileError, also where a group's state
/// would have to be another (SetOptions).
void LoadOptions(Optimizer& optimizer, const std::string& path);

}  // namespace flashoptim

#endif  // FLASHOPTIM_OPTIMIZER_FILE_H_

// Saving and loading an optimizer (docs/format.md, section 11).
#ifndef FLASHOPTIM_OPTIMIZER_FILE_H_
#define FLASHOPTIM_OPTIMIZER_FILE_H_

#include <string>

#include "flashoptim/checkpoint.h"
#include "flashoptim/optimizer.h"

namespace flashoptim {

/// Writes weights, state and options, bit for bit. `path` ends as for WriteCheckpoint; a process
/// killed at any moment leaves the old file or the new one. Throws FileError; DeviceError.
void SaveOptimizer(const Optimizer& optimizer, const std::string& path,
                   const WriteOptions& options = {});

/// Reads weights and state into an optimizer of the same tensors: names, shapes, dtypes, rule and
/// form of the state must be those of the file. Options stay those of the optimizer. Parameters of
/// the file that the optimizer does not have are an error, and the other way round. A file without
/// weights changes the state only.
///
/// Everything is checked, values included, before the first byte is written. Throws FileError,
/// naming the file, the tensor and the remedy; DeviceError.
void LoadOptimizer(Optimizer& optimizer, const std::string& path, const ReadOptions& options = {});

}  // namespace flashoptim

#endif  // FLASHOPTIM_OPTIMIZER_FILE_H_

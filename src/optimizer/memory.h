// Memory of state tensors on any device: allocation, fresh contents, copies.
#ifndef FLASHOPTIM_OPTIMIZER_MEMORY_H_
#define FLASHOPTIM_OPTIMIZER_MEMORY_H_

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "flashoptim/state.h"

namespace flashoptim {

struct ReleaseBlock {
  Device device;
  void operator()(void* memory) const noexcept;
};
using Block = std::unique_ptr<void, ReleaseBlock>;

/// Gives every state tensor without an address one, in one block per device. Throws std::bad_alloc
/// or DeviceError.
std::vector<Block> AllocateMissing(std::span<StateEntry> state);

/// Sets a state tensor to its fresh value (docs/format.md, section 7); a stream key to the
/// parameter's index. `codec` is that of the parameter.
void MakeFresh(const StateEntry& tensor, Codec codec);

/// Copies between a device and host memory behind the work of `stream`, and waits.
void CopyOut(Device device, void* stream, void* host, const void* source, std::size_t bytes);
void CopyIn(Device device, void* stream, void* target, const void* host, std::size_t bytes);

/// A piece of memory that a tensor lies in.
struct Extent {
  Device device;
  const void* data = nullptr;
  std::size_t bytes = 0;
  std::size_t alignment = 1;
  std::string what;  ///< for messages: "tensor 'w': its weight"
};

/// Throws std::invalid_argument if one is null, not aligned or runs past the end of the address
/// space, or if two overlap. Those without bytes are left out.
void CheckExtents(std::vector<Extent> extents);

}  // namespace flashoptim

#endif  // FLASHOPTIM_OPTIMIZER_MEMORY_H_

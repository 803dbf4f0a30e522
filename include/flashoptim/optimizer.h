// Optimizers on plain pointers, for training from C++. docs/cpp.md is the guide.
#ifndef FLASHOPTIM_OPTIMIZER_H_
#define FLASHOPTIM_OPTIMIZER_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "flashoptim/errors.h"
#include "flashoptim/options.h"
#include "flashoptim/state.h"
#include "flashoptim/types.h"

namespace flashoptim {

/// Memory that a caller brings for the state.
struct StateMemory {
  /// One address per entry of StateLayout, on the entry's device; null: the library allocates that
  /// one. Empty: it allocates all of them.
  std::vector<void*> addresses;
  /// Whether the memory of the caller holds the state of an earlier run, which is kept as it is.
  /// Otherwise it is set to a fresh state (docs/format.md, section 7).
  bool holds_state = false;
};

/// Steps the weights of a model. Owns the state that it allocates, and nothing else.
///
/// Threads: an optimizer is used by one thread at a time; different optimizers may be used at once.
/// There is no state outside of them but the CPU's thread pool and target (flashoptim/runtime.h).
///
/// Errors: std::invalid_argument for what the caller got wrong; DeviceError for a GPU that fails;
/// std::bad_alloc without memory. They name the tensor, the value and the remedy, and come before
/// anything is written. A moved-from optimizer can be destroyed and assigned to only.
///
/// GPUs: everything is enqueued on the stream of SetStream. What reads or writes state or master
/// weights on the host waits for that stream.
class Optimizer {
 public:
  /// Checks everything, allocates what is missing and sets it to a fresh state. The weights are not
  /// touched. A parameter's stream key is its index, as in the Python package.
  ///
  /// Throws std::invalid_argument for a description or an option that is not valid, groups of
  /// different rules, memory that overlaps or is not aligned; DeviceError for a GPU that cannot be
  /// used.
  explicit Optimizer(std::vector<ParameterGroup> groups, const StateMemory& memory = {});
  /// One group.
  Optimizer(const Options& options, std::vector<Parameter> parameters);
  ~Optimizer();
  Optimizer(Optimizer&&) noexcept;
  Optimizer& operator=(Optimizer&&) noexcept;

  /// Sets the gradient of parameter i. Its elements lie like the weight's, on the same device. It
  /// stays set until it is changed or cleared, so that a fixed buffer is set once. A parameter of
  /// no elements counts its steps too, and takes any address, null included.
  ///
  /// Throws std::invalid_argument for an index out of range, a null address, one that is not
  /// aligned to the element size.
  void SetGradient(std::size_t i, const void* data, DType dtype);
  /// The same by name.
  void SetGradient(std::string_view name, const void* data, DType dtype);
  /// Parameter i is left alone by the steps that follow.
  void ClearGradient(std::size_t i);

  /// Divides all gradients by `scale`, a finite number above 0, in the steps that follow.
  void SetGradientScale(float scale);
  /// Sets the CUDA stream (a cudaStream_t) of one GPU; the default stream until then.
  void SetStream(std::int32_t device_index, void* stream);

  /// Steps every parameter that has a gradient. Allocates nothing (but in the first step after
  /// WriteState changed a stream key, a load included); on a GPU it only enqueues,
  /// unless a policy of non-finite gradients must look at them first. Returns the number of
  /// parameters that Nonfinite::kSkip left alone. Throws NonfiniteGradientError under
  /// Nonfinite::kError.
  std::uint64_t Step();

  /// Number of groups, and the options of one as they are in force.
  std::size_t groups() const;
  const Options& options(std::size_t group) const;
  /// Changes options between steps. Throws std::invalid_argument if a value is out of range or if
  /// the change would need other state tensors (rule, codec, quantize, master_weight_bits, amsgrad,
  /// momentum from or to 0).
  void SetOptions(std::size_t group, const Options& options);
  double lr(std::size_t group) const;
  /// The learning rate alone, what schedules change. Allocates nothing.
  void SetLr(std::size_t group, double lr);

  /// Number of parameters of all groups.
  std::size_t size() const;
  const Parameter& parameter(std::size_t i) const;
  std::size_t GroupOf(std::size_t i) const;
  /// The index of a parameter; nothing if there is none of that name.
  std::optional<std::size_t> Find(std::string_view name) const;
  /// The codec that parameter i really has: none for small vectors (docs/format.md, section 2).
  Codec codec(std::size_t i) const;

  /// All state tensors in the order of StateLayout, or those of parameter i. The addresses hold for
  /// the life of the optimizer.
  std::span<const StateEntry> state() const;
  std::span<const StateEntry> state(std::size_t i) const;
  /// One of them by name; null if there is none.
  const StateEntry* FindState(std::size_t i, std::string_view name) const;
  /// Copies a state tensor to and from `tensor.bytes` bytes of host memory, in memory order.
  /// `tensor` is one of state(). Throws std::invalid_argument for a step count that is no whole
  /// number in [0, 2^24].
  void ReadState(const StateEntry& tensor, void* target) const;
  void WriteState(const StateEntry& tensor, const void* source);

  /// The same for the weight of parameter i, in its dtype.
  void ReadWeight(std::size_t i, void* target) const;
  void WriteWeight(std::size_t i, const void* source);

  /// How often parameter i was stepped.
  std::uint64_t StepCount(std::size_t i) const;

  /// Master weights of parameter i as fp32 in host memory, in the weight's memory order: one float
  /// per element. Writing splits them into weight and correction, rounding to nearest; that is how
  /// training starts from fp32 weights.
  void ReadMasterWeights(std::size_t i, std::span<float> master) const;
  void WriteMasterWeights(std::size_t i, std::span<const float> master);

  /// Bytes of parameter i, and of all.
  MemoryUse Memory(std::size_t i) const;
  MemoryUse Memory() const;

  /// What a file should say beside the tensors: the version of the format, of the library, the name
  /// of the optimizer.
  std::vector<std::pair<std::string, std::string>> Metadata() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace flashoptim

#endif  // FLASHOPTIM_OPTIMIZER_H_

// One tensor in host memory: weight, correction, moments, gradient, step count. Filled from a seed,
// so that two of them made alike start with the same bytes.
#ifndef FLASHOPTIM_TESTS_TENSOR_STATE_H_
#define FLASHOPTIM_TESTS_TENSOR_STATE_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "cases.h"
#include "flashoptim/plan.h"

namespace flashoptim::testing {

/// A stream of 64-bit numbers (splitmix64).
class Random {
 public:
  explicit Random(std::uint64_t seed) : state_(seed) {}
  std::uint64_t Next();
  std::uint64_t Below(std::uint64_t limit) { return Next() % limit; }
  /// The image of a float of `dtype`, either sign, magnitude log-uniform in [2^low, 2^high).
  std::uint32_t Image(DType dtype, int low, int high);

 private:
  std::uint64_t state_;
};

/// Bytes between two guards, at a chosen distance from a 64-byte boundary.
class Buffer {
 public:
  Buffer() = default;
  Buffer(std::size_t size, std::size_t misalignment);

  bool empty() const { return size_ == 0; }
  std::size_t size() const { return size_; }
  std::byte* data() { return storage_.data() + begin_; }
  const std::byte* data() const { return storage_.data() + begin_; }
  template <class T>
  T* As() {
    return size_ == 0 ? nullptr : reinterpret_cast<T*>(data());
  }
  /// Whether nothing was written outside.
  bool GuardsAreIntact() const;

  // A copy would lie at another distance from the boundary.
  Buffer(Buffer&&) = default;
  Buffer& operator=(Buffer&&) = default;
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  ~Buffer() = default;

 private:
  std::vector<std::byte> storage_;
  std::size_t begin_ = 0;
  std::size_t size_ = 0;
};

enum Slot : std::uint8_t {
  kWeight,
  kCorrection,
  kFirst,
  kFirstScale,
  kSecond,
  kSecondScale,
  kMaximum,
  kMaximumScale,
  kGradient,
  kSlots,
};

class TensorState {
 public:
  /// Fresh state (docs/format.md, section 7). `misaligned`: every buffer begins one element behind
  /// a 64-byte boundary.
  TensorState(const StepCase& step_case, Shape shape, std::uint64_t seed, bool misaligned = false);

  const StepCase& step_case() const { return step_case_; }
  const Shape& shape() const { return shape_; }
  std::uint64_t elements() const { return shape_.rows * shape_.row_length; }
  Buffer& buffer(Slot slot) { return buffers_[slot]; }
  const Buffer& buffer(Slot slot) const { return buffers_[slot]; }
  float& step() { return step_; }

  /// The binding of the whole tensor.
  TensorBinding Binding();
  /// The binding of `rows` rows from `first_row` on, with a step count of its own.
  TensorBinding Shard(std::uint64_t first_row, std::uint64_t rows, float* step);

  /// Fills the gradient of a step (1 for the first).
  void FillGradient(int step);
  void CopyGradientFrom(const TensorState& other);
  Gradient CurrentGradient();
  Gradient ShardGradient(std::uint64_t first_row);

  /// Where this state and another differ in any byte; empty if nowhere. Gradients are inputs and
  /// left out.
  std::string DifferenceFrom(const TensorState& other) const;
  bool GuardsAreIntact() const;

 private:
  std::size_t ElementSize(Slot slot) const;
  void FillWeights();
  void FillFreshMoments();

  StepCase step_case_;
  Shape shape_;
  std::uint64_t seed_;
  std::array<Buffer, kSlots> buffers_;
  float step_ = 0.0F;
};

/// A plan of these tensors with the hyper-parameters of the first.
Plan PlanOf(std::vector<TensorState*> tensors);

/// Sets every gradient for a step.
void SetGradients(Plan& plan, std::vector<TensorState*> tensors);

}  // namespace flashoptim::testing

#endif  // FLASHOPTIM_TESTS_TENSOR_STATE_H_

// The five optimizers for LibTorch, as torch::optim::Optimizer subclasses. docs/cpp.md is the
// guide.
#ifndef FLASHOPTIM_TORCH_ADAPTER_H_
#define FLASHOPTIM_TORCH_ADAPTER_H_

#include <torch/optim/optimizer.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <variant>
#include <vector>

#include "flashoptim/options.h"
#include "flashoptim/state.h"

namespace flashoptim {

/// What the options of the five optimizers have in common.
class FlashOptions {
 public:
  FlashOptions() = default;
  FlashOptions(const FlashOptions&) = default;
  FlashOptions& operator=(const FlashOptions&) = default;
  FlashOptions(FlashOptions&&) = default;
  FlashOptions& operator=(FlashOptions&&) = default;
  virtual ~FlashOptions() = default;
  /// The same as the C++ interface has them, and back.
  virtual Options native() const = 0;
  virtual void set_native(const Options& options) = 0;

 protected:
  static void Write(torch::serialize::OutputArchive& archive, const Options& options);
  static void Read(torch::serialize::InputArchive& archive, Options& options);
};

/// Options on a struct of flashoptim/options.h, which has the defaults.
template <class Derived, class Native>
class FlashOptionsOn : public torch::optim::OptimizerCloneableOptions<Derived>,
                       public FlashOptions {
 public:
  // NOLINTNEXTLINE(google-explicit-constructor): as the options of torch::optim
  FlashOptionsOn(double lr = Native{}.lr) { native_.lr = lr; }
  // NOLINTNEXTLINE(google-explicit-constructor)
  FlashOptionsOn(const Native& options) : native_(options) {}

  std::unique_ptr<torch::optim::OptimizerOptions> clone() const override {
    return std::make_unique<Derived>(static_cast<const Derived&>(*this));
  }
  Options native() const override { return native_; }
  void set_native(const Options& options) override { native_ = std::get<Native>(options); }
  double get_lr() const override { return native_.lr; }
  void set_lr(double lr) override { native_.lr = lr; }
  void serialize(torch::serialize::OutputArchive& archive) const override {
    Write(archive, native_);
  }
  void serialize(torch::serialize::InputArchive& archive) override {
    Options read = native_;
    Read(archive, read);
    set_native(read);
  }
  friend bool operator==(const Derived& a, const Derived& b) { return a.native_ == b.native_; }

 protected:
  Native native_;
};

// Setter and getters as TORCH_ARG makes them, on a member of the struct.
#define FLASHOPTIM_ARG(T, name)                                              \
  auto name(const T& value)->decltype(*this) {                               \
    this->native_.name = value;                                              \
    return *this;                                                            \
  }                                                                          \
  const T& name() const noexcept { return this->native_.name; } /* NOLINT */ \
  T& name() noexcept { return this->native_.name; }             /* NOLINT */

#define FLASHOPTIM_BETAS()                                      \
  using betas_t = std::tuple<double, double>;                   \
  auto betas(const betas_t& value)->decltype(*this) {           \
    std::tie(this->native_.beta1, this->native_.beta2) = value; \
    return *this;                                               \
  }                                                             \
  betas_t betas() const { return {this->native_.beta1, this->native_.beta2}; }

/// Options of FlashSGD; `storage` says how state is kept.
struct FlashSGDOptions : FlashOptionsOn<FlashSGDOptions, SgdOptions> {
  using FlashOptionsOn::FlashOptionsOn;
  FLASHOPTIM_ARG(double, lr)
  FLASHOPTIM_ARG(double, momentum)
  FLASHOPTIM_ARG(double, dampening)
  FLASHOPTIM_ARG(double, weight_decay)
  FLASHOPTIM_ARG(bool, nesterov)
  FLASHOPTIM_ARG(bool, maximize)
  FLASHOPTIM_ARG(std::optional<double>, initial_lr)
  FLASHOPTIM_ARG(StorageOptions, storage)
};

struct FlashSGDWOptions : FlashOptionsOn<FlashSGDWOptions, SgdwOptions> {
  using FlashOptionsOn::FlashOptionsOn;
  FLASHOPTIM_ARG(double, lr)
  FLASHOPTIM_ARG(double, momentum)
  FLASHOPTIM_ARG(double, dampening)
  FLASHOPTIM_ARG(double, weight_decay)
  FLASHOPTIM_ARG(bool, nesterov)
  FLASHOPTIM_ARG(bool, maximize)
  FLASHOPTIM_ARG(bool, decouple_lr)
  FLASHOPTIM_ARG(std::optional<double>, initial_lr)
  FLASHOPTIM_ARG(StorageOptions, storage)
};

struct FlashAdamOptions : FlashOptionsOn<FlashAdamOptions, AdamOptions> {
  using FlashOptionsOn::FlashOptionsOn;
  FLASHOPTIM_ARG(double, lr)
  FLASHOPTIM_BETAS()
  FLASHOPTIM_ARG(double, eps)
  FLASHOPTIM_ARG(double, weight_decay)
  FLASHOPTIM_ARG(bool, amsgrad)
  FLASHOPTIM_ARG(bool, maximize)
  FLASHOPTIM_ARG(std::optional<double>, initial_lr)
  FLASHOPTIM_ARG(StorageOptions, storage)
};

struct FlashAdamWOptions : FlashOptionsOn<FlashAdamWOptions, AdamWOptions> {
  using FlashOptionsOn::FlashOptionsOn;
  FLASHOPTIM_ARG(double, lr)
  FLASHOPTIM_BETAS()
  FLASHOPTIM_ARG(double, eps)
  FLASHOPTIM_ARG(double, weight_decay)
  FLASHOPTIM_ARG(bool, amsgrad)
  FLASHOPTIM_ARG(bool, maximize)
  FLASHOPTIM_ARG(bool, decouple_lr)
  FLASHOPTIM_ARG(std::optional<double>, initial_lr)
  FLASHOPTIM_ARG(StorageOptions, storage)
};

struct FlashLionOptions : FlashOptionsOn<FlashLionOptions, LionOptions> {
  using FlashOptionsOn::FlashOptionsOn;
  FLASHOPTIM_ARG(double, lr)
  FLASHOPTIM_BETAS()
  FLASHOPTIM_ARG(double, weight_decay)
  FLASHOPTIM_ARG(bool, maximize)
  FLASHOPTIM_ARG(bool, decouple_lr)
  FLASHOPTIM_ARG(std::optional<double>, initial_lr)
  FLASHOPTIM_ARG(StorageOptions, storage)
};

#undef FLASHOPTIM_ARG
#undef FLASHOPTIM_BETAS

/// State tensors of one parameter, under the names of docs/format.md, section 9.
class FlashParamState : public torch::optim::OptimizerCloneableParamState<FlashParamState> {
 public:
  using Tensors = std::vector<std::pair<std::string, torch::Tensor>>;

  FlashParamState() = default;
  explicit FlashParamState(Tensors tensors) : tensors_(std::move(tensors)) {}

  const Tensors& tensors() const { return tensors_; }
  /// An undefined tensor if there is none of that name.
  torch::Tensor tensor(std::string_view name) const;

  void serialize(torch::serialize::OutputArchive& archive) const override;
  void serialize(torch::serialize::InputArchive& archive) override;

 private:
  Tensors tensors_;
};

/// Base of the optimizers: everything but their options.
///
/// Parameters are bf16, fp16 or fp32, on the CPU or on GPUs, in any dense memory order. As in the
/// Python package the state is made at a parameter's first gradient, in memory of LibTorch's
/// allocators, and the bits of a step are those of the Python package. A step that follows one of
/// the same tensors allocates nothing, but for gradients in another memory order than their weight.
///
/// Errors are std::invalid_argument and those of flashoptim::Optimizer. They name the parameter,
/// the value and the remedy, and come before anything is written.
class FlashOptimizer : public torch::optim::Optimizer {
 public:
  ~FlashOptimizer() override;
  FlashOptimizer(const FlashOptimizer&) = delete;
  FlashOptimizer& operator=(const FlashOptimizer&) = delete;
  FlashOptimizer(FlashOptimizer&&) noexcept;
  FlashOptimizer& operator=(FlashOptimizer&&) noexcept;

  /// Adds a group. Its options, if it has any, count as they are: nothing is taken over from the
  /// optimizer's. Call it on this class: torch::optim::Optimizer's own, which is not virtual, gives
  /// the group the optimizer's options from LibTorch 2.9 on.
  void add_param_group(const torch::optim::OptimizerParamGroup& group);

  /// Steps every parameter that has a gradient. On GPUs it enqueues on the current streams. Uses
  /// as many threads as LibTorch (at::get_num_threads).
  torch::Tensor step(LossClosure closure = nullptr) override;

  /// What torch::save and torch::load call. State and options, bit for bit, but no weights; an
  /// archive of anything else is refused before anything is changed. Hyper-parameters come from the
  /// archive; `quantize`, `codec` and `master_weight_bits` stay, and must be those of the archive.
  void save(torch::serialize::OutputArchive& archive) const override;
  void load(torch::serialize::InputArchive& archive) override;

  /// A copy of a parameter's master weight in fp32: weight and correction joined.
  torch::Tensor master_weight(const torch::Tensor& parameter) const;
  /// Splits fp32 values into a parameter of this optimizer and its correction, rounding to nearest.
  /// One that has no state yet gets it now; one that takes no gradient gets the nearest value of
  /// its dtype.
  void set_master_weight(const torch::Tensor& parameter, const torch::Tensor& values);

  /// Bytes of the parameters that have state, of their gradients at the last step and their state.
  MemoryUse memory() const;
  /// Tensor updates that Nonfinite::kSkip has left out so far.
  std::uint64_t skipped_tensors() const { return skipped_tensors_; }

 protected:
  FlashOptimizer(const std::vector<torch::optim::OptimizerParamGroup>& groups,
                 std::unique_ptr<torch::optim::OptimizerOptions> defaults);

 private:
  using StateMap = ska::flat_hash_map<void*, std::unique_ptr<torch::optim::OptimizerParamState>>;
  struct Plan;

  const std::vector<Options>& GroupOptions();
  bool Has(const torch::Tensor& parameter) const;
  // Of the parameters that have state or a gradient, and of `with`.
  std::unique_ptr<Plan> MakePlan(const std::vector<Options>& options, StateMap& states,
                                 const torch::Tensor& with = {}) const;
  void Replan(const std::vector<Options>& options, const torch::Tensor& with = {});
  bool Fits(const Plan& plan) const;

  std::unique_ptr<Plan> plan_;    // null: made by the next step
  std::vector<Options> options_;  // of the groups; kept so that a step does not allocate
  std::uint64_t skipped_tensors_ = 0;
};

/// One of the five: FlashAdamW(model->parameters(), FlashAdamWOptions(1e-3).weight_decay(0.1)).
template <class OptionsType>
class FlashOptimizerOf : public FlashOptimizer {
 public:
  explicit FlashOptimizerOf(const std::vector<torch::optim::OptimizerParamGroup>& groups,
                            const OptionsType& defaults = {})
      : FlashOptimizer(groups, std::make_unique<OptionsType>(defaults)) {}
  explicit FlashOptimizerOf(std::vector<torch::Tensor> parameters, const OptionsType& defaults = {})
      : FlashOptimizerOf({torch::optim::OptimizerParamGroup(std::move(parameters))}, defaults) {}
};

/// Stochastic gradient descent with momentum; weight decay is added to the gradient.
class FlashSGD : public FlashOptimizerOf<FlashSGDOptions> {
  using FlashOptimizerOf::FlashOptimizerOf;
};
/// The same with decoupled weight decay.
class FlashSGDW : public FlashOptimizerOf<FlashSGDWOptions> {
  using FlashOptimizerOf::FlashOptimizerOf;
};
/// Adam; weight decay is added to the gradient.
class FlashAdam : public FlashOptimizerOf<FlashAdamOptions> {
  using FlashOptimizerOf::FlashOptimizerOf;
};
/// Adam with decoupled weight decay.
class FlashAdamW : public FlashOptimizerOf<FlashAdamWOptions> {
  using FlashOptimizerOf::FlashOptimizerOf;
};
/// Lion.
class FlashLion : public FlashOptimizerOf<FlashLionOptions> {
  using FlashOptimizerOf::FlashOptimizerOf;
};

}  // namespace flashoptim

#endif  // FLASHOPTIM_TORCH_ADAPTER_H_

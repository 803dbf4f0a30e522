#include "cuda/backend.h"

#include <cuda_runtime.h>

#include <algorithm>
#include <array>
#include <limits>
#include <utility>
#include <vector>

#include "cuda/device_guard.h"
#include "cuda/kernels.h"
#include "cuda/launch_table.h"

namespace flashoptim::cuda {
namespace {

bool IsAligned(const void* p, std::uintptr_t bytes) {
  return reinterpret_cast<std::uintptr_t>(p) % bytes == 0;
}

bool DrawsRandomMoments(const core::TensorTask& task) {
  return task.codec == Codec::kRoot && core::HasSecond(task.rule);
}

// A correction of 16 bits leaves nothing to round; without one, weights have no fast kernel.
bool DrawsRandomWeights(const core::TensorTask& task) {
  return task.stochastic_weight && task.correction_bits != 16;
}

// Whether the fast kernels can count the random numbers of a tensor in 32 bits (fast_group.cuh).
bool CountsInWord(const core::TensorTask& task, std::uint64_t groups) {
  constexpr std::uint64_t kMost = std::numeric_limits<std::uint32_t>::max();
  return task.first_group >> 28 == core::GroupInWhole(task, groups - 1) >> 28 && groups <= kMost;
}

// The number of a tensor's form; one that a rule has no fast kernel for stands for the careful one.
unsigned FormOf(const core::TensorTask& task, std::uint64_t groups) {
  const bool stochastic = DrawsRandomWeights(task);
  const bool draws = DrawsRandomMoments(task) || stochastic;
  const bool fast = core::HasFirst(task.rule) && task.codec != Codec::kNone &&
                    task.weight_dtype == DType::kBFloat16 && task.correction_bits != 0 &&
                    task.gradient_dtype == DType::kBFloat16 && task.row_length % kGroupSize == 0 &&
                    IsAligned(task.weight, 16) && IsAligned(task.gradient, 16) &&
                    IsAligned(task.correction, task.correction_bits) && IsAligned(task.first, 8) &&
                    IsAligned(task.second, 8) && IsAligned(task.maximum, 8) &&
                    (!draws || CountsInWord(task, groups));
  if (!fast) return 0;
  return NumberOf({.softsign = task.codec == Codec::kSoftsign,
                   .wide_correction = task.correction_bits == 16,
                   .scaled_gradient = task.scalars.gradient_multiplier != 1.0F ||
                                      task.scalars.coupled_decay != 0.0F,
                   .parts_of_rows = draws && task.group_stride != 0,
                   .stochastic_weight = stochastic});
}

const KernelSet& KernelsOf(core::KernelRule rule) {
  switch (rule) {
    case core::KernelRule::kSgd:
      return SgdKernels();
    case core::KernelRule::kSgdMomentum:
      return SgdMomentumKernels();
    case core::KernelRule::kAdam:
      return AdamKernels();
    case core::KernelRule::kAdamMaximum:
      return AdamMaximumKernels();
    case core::KernelRule::kLion:
      break;
  }
  return LionKernels();
}

// A table with the blocks that its tensors need so far.
struct Batch {
  LaunchTable table;
  std::uint32_t blocks = 0;

  void Clear() {
    table.count = 0;
    blocks = 0;
  }
  // Completes the table for a launch: the search of a block's tensor must not cost what it would
  // for a full table, which is a twentieth of a block's instructions.
  void Finish() {
    table.first_block[table.count] = blocks;
    table.hint_shift = 0;
    while ((blocks - 1) >> table.hint_shift >= kHints) ++table.hint_shift;
    std::uint32_t tensor = 0;
    for (std::uint32_t i = 0; i <= (blocks - 1) >> table.hint_shift; ++i) {
      while (table.first_block[tensor + 1] <= i << table.hint_shift) ++tensor;
      table.hints[i] = static_cast<std::uint8_t>(tensor);
    }
  }
  bool Full() const { return table.count == kTableCapacity; }
  void Add(const core::TensorTask& task, std::uint64_t groups, std::uint32_t index) {
    table.first_block[table.count] = blocks;
    table.device_index[table.count] = index;
    table.tasks[table.count] = task;
    table.last_groups[table.count] =
        static_cast<std::uint8_t>((groups - 1) % LaunchPolicy::kGroupsPerBlock + 1);
    ++table.count;
    blocks += static_cast<std::uint32_t>((groups + LaunchPolicy::kGroupsPerBlock - 1) /
                                         LaunchPolicy::kGroupsPerBlock);
  }
};

// An array on the current device.
template <class T>
class DeviceArray {
 public:
  DeviceArray() = default;
  DeviceArray(std::size_t size, const char* what) {
    Check(cudaMalloc(&data_, size * sizeof(T)), what);
  }
  DeviceArray(DeviceArray&& other) noexcept : data_(std::exchange(other.data_, nullptr)) {}
  DeviceArray& operator=(DeviceArray&& other) noexcept {
    std::swap(data_, other.data_);
    return *this;
  }
  DeviceArray(const DeviceArray&) = delete;
  DeviceArray& operator=(const DeviceArray&) = delete;
  ~DeviceArray() { cudaFree(data_); }

  T* get() const { return data_; }

 private:
  T* data_ = nullptr;
};

// Memory is taken only for what is in use, since gradient release makes a stepper per parameter.
class DeviceStepper : public Stepper {
 public:
  DeviceStepper(int device, std::size_t device_scalars) : device_(device) {
    if (device_scalars == 0) return;
    const DeviceGuard guard(device_);
    scalars_ = {device_scalars, "cannot allocate the scalars of a step"};
    prepare_ = std::make_unique<PrepareTable>();
  }

  void Step(Rule rule, std::span<const core::TensorTask> tasks,
            std::span<const core::ScalarSource> sources, const core::GradientScaling& scaling,
            void* stream) override {
    const DeviceGuard guard(device_);
    if (!sources.empty()) Prepare(rule, tasks, sources, scaling, stream);
    const bool device_scalars = !sources.empty();
    for (const std::unique_ptr<Batch>& batch : batches_) {
      if (batch != nullptr) batch->Clear();  // of what a step that threw has left
    }
    // The tensors of a plan share their rule but not always its kernels: amsgrad and momentum are
    // per parameter group.
    const core::KernelRule* kernel_rule = nullptr;
    std::uint32_t index = 0;
    for (const core::TensorTask& task : tasks) {
      if (task.gradient == nullptr) continue;
      const std::uint32_t number = index++;
      const std::uint64_t groups = core::GroupCount(task);
      if (groups == 0) continue;
      if (kernel_rule != nullptr && *kernel_rule != task.rule) {
        LaunchAll(*kernel_rule, device_scalars, stream);
      }
      kernel_rule = &task.rule;
      const unsigned form = FormOf(task, groups);
      Batch& batch = BatchOf(form);
      if (batch.Full()) Launch(form, *kernel_rule, device_scalars, stream);
      batch.Add(task, groups, number);
    }
    if (kernel_rule != nullptr) LaunchAll(*kernel_rule, device_scalars, stream);
  }

  void FindNonfinite(std::span<const core::TensorTask> tasks, void* stream,
                     std::span<std::uint8_t> flags) override {
    const DeviceGuard guard(device_);
    auto* const cuda_stream = static_cast<cudaStream_t>(stream);
    std::fill(flags.begin(), flags.end(), std::uint8_t{0});
    if (flags_.get() == nullptr) {
      flags_ = {kTableCapacity, "cannot allocate the flags of a check"};
    }
    Batch& batch = BatchOf(0);
    std::vector<std::size_t> members;
    const auto flush = [&] {
      std::array<std::uint8_t, kTableCapacity> marks{};
      Check(cudaMemsetAsync(flags_.get(), 0, kTableCapacity, cuda_stream), "cannot clear flags");
      batch.Finish();
      FindNonfiniteKernel(batch.table, batch.blocks, flags_.get(), stream);
      Check(cudaGetLastError(), "cannot launch the non-finite check");
      Check(cudaMemcpyAsync(marks.data(), flags_.get(), kTableCapacity, cudaMemcpyDeviceToHost,
                            cuda_stream),
            "cannot read flags");
      Check(cudaStreamSynchronize(cuda_stream), "the non-finite check failed");
      for (std::size_t i = 0; i < members.size(); ++i) flags[members[i]] = marks[i];
      members.clear();
      batch.Clear();
    };
    batch.Clear();
    for (std::size_t i = 0; i < tasks.size(); ++i) {
      const std::uint64_t groups = core::GroupCount(tasks[i]);
      if (tasks[i].gradient == nullptr || groups == 0) continue;
      if (batch.Full()) flush();
      batch.Add(tasks[i], groups, 0);
      members.push_back(i);
    }
    if (!members.empty()) flush();
  }

 private:
  // Counts the steps of all tensors with a gradient and makes their scalars, in the order in which
  // Step takes them.
  void Prepare(Rule rule, std::span<const core::TensorTask> tasks,
               std::span<const core::ScalarSource> sources, const core::GradientScaling& scaling,
               void* stream) {
    prepare_->rule = rule;
    prepare_->scaling = scaling;
    DeviceScalars* next = scalars_.get();
    const auto flush = [&] {
      prepare_->result = next;
      PrepareScalars(*prepare_, stream);
      Check(cudaGetLastError(), "cannot launch the scalars of a step");
      next += prepare_->count;
      prepare_->count = 0;
    };
    prepare_->count = 0;
    for (std::size_t i = 0; i < tasks.size(); ++i) {
      if (tasks[i].gradient == nullptr) continue;
      if (prepare_->count == kTableCapacity) flush();
      prepare_->sources[prepare_->count++] = sources[i];
    }
    if (prepare_->count != 0) flush();
  }

  // The batch of a form, empty between steps.
  Batch& BatchOf(unsigned form) {
    std::unique_ptr<Batch>& batch = batches_[form];
    if (batch == nullptr) {
      batch = std::make_unique<Batch>();
      batch->Clear();
    }
    return *batch;
  }

  void LaunchAll(core::KernelRule rule, bool device_scalars, void* stream) {
    for (unsigned form = 0; form < kForms; ++form) {
      if (batches_[form] != nullptr && batches_[form]->table.count != 0) {
        Launch(form, rule, device_scalars, stream);
      }
    }
  }

  void Launch(unsigned form, core::KernelRule rule, bool device_scalars, void* stream) {
    Batch& batch = *batches_[form];
    const KernelSet& kernels = KernelsOf(rule);
    const Kernel kernel =
        device_scalars ? kernels.device_scalars[form] : kernels.host_scalars[form];
    batch.Finish();
    batch.table.device_scalars = scalars_.get();
    void* arguments[] = {&batch.table};
    const cudaError_t error =
        cudaLaunchKernel(kernel, dim3(batch.blocks), dim3(LaunchPolicy::kThreads), arguments, 0,
                         static_cast<cudaStream_t>(stream));
    batch.Clear();
    Check(error, "cannot launch a step");
  }

  int device_;
  std::array<std::unique_ptr<Batch>, kForms> batches_;  // made at a form's first tensor
  std::unique_ptr<PrepareTable> prepare_;               // too large for a stack
  DeviceArray<std::uint8_t> flags_;                     // made at the first check
  DeviceArray<DeviceScalars> scalars_;                  // in the order of the tensors
};

std::string FindStatus(bool* available) {
  *available = false;
  int devices = 0;
  const cudaError_t error = cudaGetDeviceCount(&devices);
  if (error != cudaSuccess) {
    return std::string("no usable GPU: ") + cudaGetErrorString(error);
  }
  if (devices == 0) return "no GPU was found";
  cudaFuncAttributes attributes;
  const auto* kernel = reinterpret_cast<const void*>(AdamKernels().host_scalars.front());
  const cudaError_t image = cudaFuncGetAttributes(&attributes, kernel);
  if (image != cudaSuccess) {
    return std::string("this build has no kernels for the GPU: ") + cudaGetErrorString(image);
  }
  *available = true;
  return std::to_string(devices) + (devices == 1 ? " GPU" : " GPUs");
}

}  // namespace

bool Available() {
  static const bool available = [] {
    bool result = false;
    FindStatus(&result);
    return result;
  }();
  return available;
}

std::string Status() {
  bool available = false;
  return FindStatus(&available);
}

void LoadKernels(int device, Rule rule) {
  const DeviceGuard guard(device);
  const auto load = [](const KernelSet& kernels) {
    cudaFuncAttributes attributes;
    for (const KernelsByForm* forms : {&kernels.host_scalars, &kernels.device_scalars}) {
      for (const Kernel kernel : *forms) {
        Check(cudaFuncGetAttributes(&attributes, reinterpret_cast<const void*>(kernel)),
              "cannot load a kernel");
      }
    }
  };
  switch (rule) {
    case Rule::kSgd:
      load(SgdKernels());
      load(SgdMomentumKernels());
      return;
    case Rule::kAdam:
      load(AdamKernels());
      load(AdamMaximumKernels());
      return;
    case Rule::kLion:
      load(LionKernels());
      return;
  }
}

std::unique_ptr<Stepper> MakeStepper(int device, std::size_t device_scalars) {
  return std::make_unique<DeviceStepper>(device, device_scalars);
}

}  // namespace flashoptim::cuda

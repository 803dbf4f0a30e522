#include "cuda/backend.h"

#include <cuda_runtime.h>

#include <algorithm>
#include <array>
#include <vector>

#include "cuda/device_guard.h"
#include "cuda/kernels.h"
#include "cuda/launch_table.h"

namespace flashoptim::cuda {
namespace {

bool IsAligned(const void* p, std::uintptr_t bytes) {
  return reinterpret_cast<std::uintptr_t>(p) % bytes == 0;
}

// Whether all blocks of a tensor can share the high half of the random counter (step_kernel.cuh).
bool SharesCounterHigh(const core::TensorTask& task, std::uint64_t groups) {
  return task.first_group >> 28 == (task.first_group + groups - 1) >> 28;
}

unsigned FormOf(const core::TensorTask& task, std::uint64_t groups) {
  const bool fast = core::HasFirst(task.rule) && task.codec != Codec::kNone &&
                    task.weight_dtype == DType::kBFloat16 && task.correction_bits != 0 &&
                    task.gradient_dtype == DType::kBFloat16 && !task.stochastic_weight &&
                    task.row_length % kGroupSize == 0 && IsAligned(task.weight, 16) &&
                    IsAligned(task.gradient, 16) &&
                    IsAligned(task.correction, task.correction_bits) && IsAligned(task.first, 8) &&
                    IsAligned(task.second, 8) && IsAligned(task.maximum, 8) &&
                    SharesCounterHigh(task, groups);
  if (!fast) return 0;
  return FastForm(task.codec == Codec::kSoftsign, task.correction_bits == 16,
                  task.scalars.gradient_multiplier == 1.0F && task.scalars.coupled_decay == 0.0F);
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
  // for 192 tensors, which is a twentieth of a block's instructions.
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

class DeviceStepper : public Stepper {
 public:
  DeviceStepper(int device, std::size_t tensors)
      : device_(device), batches_(kForms), prepare_(std::make_unique<PrepareTable>()) {
    const DeviceGuard guard(device_);
    Check(cudaMalloc(&flags_, kTableCapacity), "cannot allocate the flags of a check");
    Check(cudaMalloc(&scalars_, std::max<std::size_t>(tensors, 1) * sizeof(DeviceScalars)),
          "cannot allocate the scalars of a step");
  }
  ~DeviceStepper() override {
    cudaFree(flags_);
    cudaFree(scalars_);
  }

  void Step(Rule rule, std::span<const core::TensorTask> tasks,
            std::span<const core::ScalarSource> sources, const core::GradientScaling& scaling,
            void* stream) override {
    const DeviceGuard guard(device_);
    if (!sources.empty()) Prepare(rule, tasks, sources, scaling, stream);
    const bool device_scalars = !sources.empty();
    for (Batch& batch : batches_) batch.Clear();
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
      Batch& batch = batches_[FormOf(task, groups)];
      if (batch.Full()) Launch(batch, *kernel_rule, device_scalars, stream);
      batch.Add(task, groups, number);
    }
    if (kernel_rule != nullptr) LaunchAll(*kernel_rule, device_scalars, stream);
  }

  void FindNonfinite(std::span<const core::TensorTask> tasks, void* stream,
                     std::span<std::uint8_t> flags) override {
    const DeviceGuard guard(device_);
    const auto cuda_stream = static_cast<cudaStream_t>(stream);
    std::fill(flags.begin(), flags.end(), std::uint8_t{0});
    Batch& batch = batches_.front();
    std::vector<std::size_t> members;
    const auto flush = [&] {
      std::array<std::uint8_t, kTableCapacity> marks{};
      Check(cudaMemsetAsync(flags_, 0, kTableCapacity, cuda_stream), "cannot clear flags");
      batch.Finish();
      FindNonfiniteKernel(batch.table, batch.blocks, flags_, stream);
      Check(cudaGetLastError(), "cannot launch the non-finite check");
      Check(cudaMemcpyAsync(marks.data(), flags_, kTableCapacity, cudaMemcpyDeviceToHost,
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
    DeviceScalars* next = scalars_;
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

  void LaunchAll(core::KernelRule rule, bool device_scalars, void* stream) {
    for (Batch& batch : batches_) {
      if (batch.table.count != 0) Launch(batch, rule, device_scalars, stream);
    }
  }

  void Launch(Batch& batch, core::KernelRule rule, bool device_scalars, void* stream) {
    const auto form = static_cast<std::size_t>(&batch - batches_.data());
    const KernelSet& kernels = KernelsOf(rule);
    const Kernel kernel =
        device_scalars ? kernels.device_scalars[form] : kernels.host_scalars[form];
    batch.Finish();
    batch.table.device_scalars = scalars_;
    void* arguments[] = {&batch.table};
    Check(cudaLaunchKernel(reinterpret_cast<const void*>(kernel), dim3(batch.blocks),
                           dim3(LaunchPolicy::kThreads), arguments, 0,
                           static_cast<cudaStream_t>(stream)),
          "cannot launch a step");
    batch.Clear();
  }

  int device_;
  std::vector<Batch> batches_;             // by form
  std::unique_ptr<PrepareTable> prepare_;  // too large for a stack
  std::uint8_t* flags_ = nullptr;
  DeviceScalars* scalars_ = nullptr;  // in the order of the tensors
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

std::unique_ptr<Stepper> MakeStepper(int device, std::size_t tensors) {
  return std::make_unique<DeviceStepper>(device, tensors);
}

}  // namespace flashoptim::cuda

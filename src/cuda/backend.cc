#include "cuda/backend.h"

#include <cuda_runtime.h>

#include <algorithm>
#include <array>
#include <stdexcept>
#include <vector>

#include "cuda/kernels.h"
#include "cuda/launch_table.h"

namespace flashoptim::cuda {
namespace {

void Check(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return;
  throw std::runtime_error(std::string("CUDA: ") + what + ": " + cudaGetErrorString(error));
}

// Makes a device current for the length of a scope.
class DeviceGuard {
 public:
  explicit DeviceGuard(int device) {
    Check(cudaGetDevice(&previous_), "cannot ask for the current device");
    if (device != previous_) Check(cudaSetDevice(device), "cannot use the tensor's device");
  }
  ~DeviceGuard() { cudaSetDevice(previous_); }
  DeviceGuard(const DeviceGuard&) = delete;
  DeviceGuard& operator=(const DeviceGuard&) = delete;

 private:
  int previous_ = 0;
};

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

KernelsByForm KernelsOf(core::KernelRule rule) {
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
  bool Full() const { return table.count == kTableCapacity; }
  void Add(const core::TensorTask& task, std::uint64_t groups) {
    table.first_block[table.count] = blocks;
    table.tasks[table.count] = task;
    ++table.count;
    blocks += static_cast<std::uint32_t>((groups + LaunchPolicy::kGroupsPerBlock - 1) /
                                         LaunchPolicy::kGroupsPerBlock);
  }
};

class DeviceStepper : public Stepper {
 public:
  DeviceStepper(int device, std::size_t tensors) : device_(device), batches_(kForms) {
    const DeviceGuard guard(device_);
    Check(cudaMalloc(&flags_, std::max<std::size_t>(tensors, kTableCapacity)),
          "cannot allocate the flags of the non-finite check");
  }
  ~DeviceStepper() override { cudaFree(flags_); }

  void Step(std::span<const core::TensorTask> tasks, void* stream) override {
    const DeviceGuard guard(device_);
    for (Batch& batch : batches_) batch.Clear();
    // The tensors of a plan share their rule but not always its kernels: amsgrad and momentum are
    // per parameter group.
    const core::KernelRule* rule = nullptr;
    for (const core::TensorTask& task : tasks) {
      const std::uint64_t groups = core::GroupCount(task);
      if (task.gradient == nullptr || groups == 0) continue;
      if (rule != nullptr && *rule != task.rule) LaunchAll(*rule, stream);
      rule = &task.rule;
      Batch& batch = batches_[FormOf(task, groups)];
      if (batch.Full()) Launch(batch, *rule, stream);
      batch.Add(task, groups);
    }
    if (rule != nullptr) LaunchAll(*rule, stream);
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
      batch.Add(tasks[i], groups);
      members.push_back(i);
    }
    if (!members.empty()) flush();
  }

 private:
  void LaunchAll(core::KernelRule rule, void* stream) {
    for (Batch& batch : batches_) {
      if (batch.table.count != 0) Launch(batch, rule, stream);
    }
  }

  void Launch(Batch& batch, core::KernelRule rule, void* stream) {
    const auto form = static_cast<std::size_t>(&batch - batches_.data());
    const Kernel kernel = KernelsOf(rule)[form];
    void* arguments[] = {&batch.table};
    Check(cudaLaunchKernel(reinterpret_cast<const void*>(kernel), dim3(batch.blocks),
                           dim3(LaunchPolicy::kThreads), arguments, 0,
                           static_cast<cudaStream_t>(stream)),
          "cannot launch a step");
    batch.Clear();
  }

  int device_;
  std::vector<Batch> batches_;  // by form
  std::uint8_t* flags_ = nullptr;
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
  const auto* kernel = reinterpret_cast<const void*>(AdamKernels().front());
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

std::unique_ptr<Stepper> MakeStepper(int device, std::size_t tensors) {
  return std::make_unique<DeviceStepper>(device, tensors);
}

}  // namespace flashoptim::cuda

#include "flashoptim/runtime.h"

#include "cpu/targets.h"
#include "cpu/thread_pool.h"
#include "cuda/backend.h"

namespace flashoptim {

const char* Version() { return FLASHOPTIM_VERSION; }

std::vector<std::string> CpuTargets() {
  std::vector<std::string> names;
  for (const cpu::Target& target : cpu::SupportedTargets()) names.emplace_back(target.name);
  return names;
}

std::string CpuTarget() { return std::string(cpu::ChosenTarget().name); }

void SetCpuTarget(const std::string& name) { cpu::ChooseTarget(name); }

int CpuThreads() { return cpu::ThreadCount(); }

void SetCpuThreads(int count) { cpu::SetThreadCount(count); }

bool CudaAvailable() { return cuda::Available(); }

std::string CudaStatus() { return cuda::Status(); }

void LoadCudaKernels(Rule rule, std::int32_t device_index) {
  cuda::LoadKernels(device_index, rule);
}

}  // namespace flashoptim

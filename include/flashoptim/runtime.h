// What this build and this machine offer.
#ifndef FLASHOPTIM_RUNTIME_H_
#define FLASHOPTIM_RUNTIME_H_

#include <cstdint>
#include <string>
#include <vector>

#include "flashoptim/types.h"

namespace flashoptim {

/// The library's version, "major.minor.patch".
const char* Version();

/// Instruction sets that this machine can run, best first: "avx512_vbmi", "avx512", "avx2", "neon",
/// "scalar".
std::vector<std::string> CpuTargets();

/// The one in use. The environment variable FLASHOPTIM_CPU_TARGET forces one; std::invalid_argument
/// if that is not possible.
std::string CpuTarget();

/// Forces one for this process; same error.
void SetCpuTarget(const std::string& name);

/// Threads of a CPU step, the caller's included.
int CpuThreads();
void SetCpuThreads(int count);

/// Whether CUDA tensors can be stepped; if not, `CudaStatus` says why in a sentence.
bool CudaAvailable();
std::string CudaStatus();

/// Loads the kernels of a rule on a GPU, so that the first step there takes no longer than others.
/// Without CUDA kernels in this build it does nothing. Throws std::runtime_error if the GPU cannot
/// be used.
void LoadCudaKernels(Rule rule, std::int32_t device_index);

}  // namespace flashoptim

#endif  // FLASHOPTIM_RUNTIME_H_

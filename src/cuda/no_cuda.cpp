#include "cuda/backend.h"
#include "flashoptim/errors.h"

namespace flashoptim::cuda {
namespace {

[[noreturn]] void Refuse() {
  throw DeviceError(Status() + "; keep the parameters on the CPU or build with FLASHOPTIM_CUDA=ON");
}

}  // namespace

bool Available() { return false; }

std::string Status() { return "this build of flashoptim has no CUDA kernels"; }

void LoadKernels(int /*device*/, Rule /*rule*/) {}

std::unique_ptr<Stepper> MakeStepper(int /*device*/, std::size_t /*device_scalars*/) { Refuse(); }

void* Allocate(int /*device*/, std::size_t /*bytes*/) { Refuse(); }

void Release(void* /*memory*/) noexcept {}

void CopyToDevice(int /*device*/, void* /*target*/, const void* /*source*/, std::size_t /*bytes*/,
                  void* /*stream*/) {
  Refuse();
}

void CopyToHost(int /*device*/, void* /*target*/, const void* /*source*/, std::size_t /*bytes*/,
                void* /*stream*/) {
  Refuse();
}

}  // namespace flashoptim::cuda

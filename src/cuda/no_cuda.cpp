#include <stdexcept>

#include "cuda/backend.h"

namespace flashoptim::cuda {

bool Available() { return false; }

std::string Status() { return "this build of flashoptim has no CUDA kernels"; }

void LoadKernels(int /*device*/, Rule /*rule*/) {}

std::unique_ptr<Stepper> MakeStepper(int /*device*/, std::size_t /*device_scalars*/) {
  throw std::runtime_error(Status() +
                           "; keep the parameters on the CPU or build with FLASHOPTIM_CUDA=ON");
}

}  // namespace flashoptim::cuda

// The static and the shared library in one program do not meet.
#include <flashoptim/flashoptim.h>
#include <flashoptim/runtime.h>

#include <cstring>

int main() {
  flashoptim_tensor tensor = FLASHOPTIM_TENSOR_INIT;
  return tensor.struct_size == sizeof(tensor) &&
                 std::strcmp(flashoptim::Version(), flashoptim_version()) == 0
             ? 0
             : 1;
}

#include "flashoptim/runtime.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <iterator>

#include "capi/guard.h"
#include "capi/translate.h"

namespace flashoptim::capi {
namespace {

// Without allocation, so that a lack of memory can be reported too.
thread_local std::array<char, 2048> last_error{};

}  // namespace

flashoptim_status Report(flashoptim_status code, const char* message) noexcept {
  std::size_t length = std::min(std::strlen(message), last_error.size() - 1);
  // A text in UTF-8 stays one: it ends before a character that would be cut.
  while (length > 0 && (static_cast<unsigned char>(message[length]) & 0xc0U) == 0x80U) --length;
  std::copy_n(message, length, last_error.begin());
  last_error[length] = '\0';
  return code;
}

}  // namespace flashoptim::capi

using flashoptim::capi::CheckPointer;
using flashoptim::capi::Guarded;

const char* flashoptim_version(void) { return flashoptim::Version(); }

int32_t flashoptim_format_version(void) { return flashoptim::kFormatVersion; }

int32_t flashoptim_abi_version(void) { return FLASHOPTIM_ABI_VERSION; }

const char* flashoptim_last_error(void) { return flashoptim::capi::last_error.data(); }

const char* flashoptim_status_name(flashoptim_status status) {
  static constexpr const char* kNames[] = {"FLASHOPTIM_OK",
                                           "FLASHOPTIM_INVALID_ARGUMENT",
                                           "FLASHOPTIM_OUT_OF_MEMORY",
                                           "FLASHOPTIM_DEVICE_ERROR",
                                           "FLASHOPTIM_NONFINITE_GRADIENT",
                                           "FLASHOPTIM_FILE_ERROR",
                                           "FLASHOPTIM_INTERNAL_ERROR"};
  const auto count = static_cast<flashoptim_status>(std::size(kNames));
  return status >= 0 && status < count ? kNames[status] : "unknown";
}

int32_t flashoptim_cuda_available(void) {
  int32_t available = 0;
  // A driver that cannot be asked is one that cannot be used.
  Guarded([&] { available = flashoptim::CudaAvailable() ? 1 : 0; });
  return available;
}

int32_t flashoptim_cpu_threads(void) { return flashoptim::CpuThreads(); }

flashoptim_status flashoptim_set_cpu_threads(int32_t count) {
  return Guarded([&] { flashoptim::SetCpuThreads(count); });
}

flashoptim_status flashoptim_options_init(flashoptim_options* options, size_t struct_size,
                                          int32_t optimizer) {
  return Guarded([&] {
    CheckPointer(options, "options");
    if (struct_size != sizeof(flashoptim_options)) {
      throw std::invalid_argument("struct_size is " + std::to_string(struct_size) + ", not " +
                                  std::to_string(sizeof(flashoptim_options)) +
                                  "; pass sizeof(flashoptim_options), and compile with the header "
                                  "of this library");
    }
    const flashoptim::Options defaults = flashoptim::capi::DefaultsOf(optimizer);
    options->struct_size = struct_size;
    flashoptim::capi::Fill(defaults, *options);
  });
}

// Whatever a call of the C interface throws becomes a code; nothing leaves it.
#include "capi/guard.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <system_error>

namespace flashoptim::capi {
namespace {

std::string reported;

}  // namespace

// The library's own keeps the text for flashoptim_last_error.
flashoptim_status Report(flashoptim_status code, const char* message) noexcept {
  reported = message;
  return code;
}

namespace {

template <class Error>
flashoptim_status CodeOf(const Error& error) {
  return Guarded([&] { throw error; });
}

TEST(Guard, GivesEachExceptionItsCode) {
  static_assert(noexcept(Guarded([] {})));
  EXPECT_EQ(Guarded([] {}), FLASHOPTIM_OK);
  EXPECT_EQ(CodeOf(std::invalid_argument("x")), FLASHOPTIM_INVALID_ARGUMENT);
  EXPECT_EQ(CodeOf(NonfiniteGradientError("x")), FLASHOPTIM_NONFINITE_GRADIENT);
  EXPECT_EQ(CodeOf(DeviceError("x")), FLASHOPTIM_DEVICE_ERROR);
  EXPECT_EQ(CodeOf(FileError("the file")), FLASHOPTIM_FILE_ERROR);
  EXPECT_EQ(reported, "the file");
  EXPECT_EQ(CodeOf(std::bad_alloc()), FLASHOPTIM_OUT_OF_MEMORY);
  EXPECT_NE(reported.find("not enough memory"), std::string::npos);
}

TEST(Guard, CallsTheRestADefect) {
  EXPECT_EQ(CodeOf(std::logic_error("x")), FLASHOPTIM_INTERNAL_ERROR);
  EXPECT_EQ(CodeOf(std::filesystem::filesystem_error("x", std::error_code())),
            FLASHOPTIM_INTERNAL_ERROR);
  EXPECT_EQ(CodeOf(42), FLASHOPTIM_INTERNAL_ERROR);
  EXPECT_NE(reported.find("unknown type"), std::string::npos);
}

}  // namespace
}  // namespace flashoptim::capi

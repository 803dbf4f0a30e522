// Fuzz target: the description of an optimizer in a file's metadata. Whatever the text says, it is
// refused with a FileError, or it is a description: writing it gives a text that means the same,
// its numbers are judged without harm, and the state that it asks for has a size.
#include <array>
#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <string_view>

#include "flashoptim/plan.h"
#include "flashoptim/state_file.h"

namespace {

void Require(bool condition) {
  if (!condition) __builtin_trap();
}

void SizeOfState(const flashoptim::StateDescription& description,
                 const flashoptim::StateGroup& group) {
  static constexpr std::array<std::uint64_t, 2> kShape{3, 70};
  std::uint64_t bytes = 0;
  for (const auto dtype : {flashoptim::DType::kBFloat16, flashoptim::DType::kFloat32}) {
    for (const auto& tensor :
         flashoptim::StateTensorsOf(description.rule, group.kept, dtype, kShape)) {
      bytes += tensor.bytes();
    }
  }
  Require(bytes >= 2 * 12 && bytes <= 210 * 2 * 14 + 1000);  // step and key; at most all of it
}

void Read(std::string_view text) {
  const auto description = flashoptim::OptionsFromText(text);
  const std::string again = flashoptim::OptionsToText(description);
  Require(flashoptim::OptionsToText(flashoptim::OptionsFromText(again)) == again);
  for (const auto& group : description.groups) {
    SizeOfState(description, group);
    try {
      flashoptim::CheckHyperparameters(description.rule, group.hyperparameters);
    } catch (const std::invalid_argument&) {  // a number out of its range
    }
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  try {
    Read({reinterpret_cast<const char*>(data), size});
  } catch (const flashoptim::FileError&) {  // the one way to refuse
  }
  return 0;
}

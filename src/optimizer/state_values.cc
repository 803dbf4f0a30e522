// Whether every stored value of a state has a meaning (docs/format.md, sections 4 to 6).
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <exception>

#include "checkpoint/strict_json.h"
#include "core/tensor_task.h"
#include "cpu/scalar.h"
#include "cpu/thread_pool.h"
#include "flashoptim/state_file.h"

namespace flashoptim {
namespace {

using checkpoint::Quoted;
using L = scalar::Lanes;

constexpr const char* kRemedy = "; the state is damaged: restore it from a copy";
constexpr float kLargestStep = 0x1p24F;  // where floats stop counting

[[noreturn]] void Fail(const FileTensor& tensor, const std::string& what) {
  throw FileError("tensor " + Quoted(tensor.name) + ": " + what + kRemedy);
}

template <class T>
std::vector<T> Copy(const FileTensor& tensor) {
  std::vector<T> values(tensor.elements());
  if (!values.empty()) std::memcpy(values.data(), tensor.data.data(), tensor.data.size());
  return values;
}

struct CodeForm {
  int largest;  // magnitude
  int mark;     // magnitude of the code of a non-finite element
};

constexpr CodeForm FormOf(Moment kind) {
  return kind == Moment::kFirst ? CodeForm{127, 128} : CodeForm{255, 0};
}

struct CodeCounts {
  std::uint32_t marked = 0;
  std::uint32_t largest = 0;
};

template <class Code>
CodeCounts Count(const CodeForm& form, const std::byte* bytes, std::uint64_t size) {
  CodeCounts counts;
  for (std::uint64_t i = 0; i < size; ++i) {
    const int magnitude = std::abs(static_cast<int>(std::to_integer<Code>(bytes[i])));
    counts.marked += magnitude == form.mark ? 1U : 0U;
    counts.largest += magnitude == form.largest ? 1U : 0U;
  }
  return counts;
}

// One group of codes under its scale.
void CheckGroup(const MomentTensors& moment, std::span<const std::byte> codes, float scale,
                float floor, std::uint64_t group, MomentStatistics& statistics) {
  const std::uint32_t bits = L::Bits(scale);
  const bool flagged = (bits & scalar::kScaleFlag) != 0;
  const float value = L::AsFloat(bits & ~scalar::kScaleFlag);
  if (!std::isfinite(value) || !(value >= floor)) {
    Fail(*moment.codes, "the scale of group " + std::to_string(group) + " is " +
                            std::to_string(value) + ", which no encoding produces");
  }
  const CodeForm form = FormOf(moment.kind);
  const CodeCounts counts = moment.kind == Moment::kFirst
                                ? Count<std::int8_t>(form, codes.data(), codes.size())
                                : Count<std::uint8_t>(form, codes.data(), codes.size());
  if (flagged != (counts.marked != 0)) {
    Fail(*moment.codes, "group " + std::to_string(group) +
                            (flagged ? " is flagged as not finite and has no such element"
                                     : " has an element that is marked as not finite and no flag"));
  }
  statistics.flagged_groups += flagged ? 1U : 0U;
  statistics.fresh_groups += value == floor ? 1U : 0U;
  // A fresh second moment has the largest code everywhere.
  if (value != floor && counts.largest > 1) statistics.saturated += counts.largest - 1;
  statistics.smallest_scale =
      statistics.groups == 0 ? value : std::min(statistics.smallest_scale, value);
  statistics.largest_scale = std::max(statistics.largest_scale, value);
  ++statistics.groups;
}

float FloorOf(Moment kind, Codec codec) {
  return kind == Moment::kFirst ? FreshFirstScale() : FreshSecondScale(codec);
}

// All groups of a moment in 8 bits.
void CheckGroups(const ParameterState& parameter, const MomentTensors& moment,
                 std::span<const std::byte> codes, std::span<const float> scales,
                 MomentStatistics& statistics) {
  const Geometry& geometry = parameter.geometry;
  const float floor = FloorOf(moment.kind, parameter.codec);
  for (std::uint64_t group = 0; group < scales.size(); ++group) {
    const std::uint64_t row = group / geometry.groups_per_row;
    const std::uint64_t in_row = group % geometry.groups_per_row * kGroupSize;
    const std::uint64_t size = std::min(kGroupSize, geometry.row_length - in_row);
    CheckGroup(moment, codes.subspan(row * geometry.row_length + in_row, size), scales[group],
               floor, group, statistics);
  }
}

void CheckNotNegative(const MomentTensors& moment, std::span<const float> values,
                      std::uint64_t first_element) {
  if (moment.kind != Moment::kSecond) return;
  const auto found = std::find_if(values.begin(), values.end(), [](float x) { return x < 0.0F; });
  if (found == values.end()) return;
  const auto i = first_element + static_cast<std::uint64_t>(found - values.begin());
  Fail(*moment.codes, "element " + std::to_string(i) + " is " + std::to_string(*found) +
                          ", and a second moment is never negative");
}

// What `CheckMoment` refuses, without decoding codes: none of them is negative.
void CheckValues(const ParameterState& parameter, const MomentTensors& moment) {
  std::vector<std::byte> storage;
  const auto bytes = InMemoryOrder(*moment.codes, parameter, storage);
  if (parameter.codec == Codec::kNone) {
    const auto* values = reinterpret_cast<const float*>(bytes.data());
    return CheckNotNegative(moment, {values, parameter.elements()}, 0);
  }
  MomentStatistics unused;
  CheckGroups(parameter, moment, bytes, Copy<float>(*moment.scale), unused);
}

// Any number is a stream key.
void CheckScalars(const ParameterState& parameter) {
  const float step = Copy<float>(*parameter.step).at(0);
  if (!(step >= 0.0F) || step > kLargestStep || step != std::floor(step)) {
    Fail(*parameter.step, "the step count is " + std::to_string(step) + ", not a whole number");
  }
}

}  // namespace

MomentStatistics CheckMoment(const ParameterState& parameter, const MomentTensors& moment) {
  MomentStatistics statistics;
  statistics.elements = parameter.elements();
  std::vector<std::byte> storage;
  const auto bytes = InMemoryOrder(*moment.codes, parameter, storage);
  const Geometry& geometry = parameter.geometry;
  std::vector<float> scales;
  if (parameter.codec != Codec::kNone) {
    scales = Copy<float>(*moment.scale);
    CheckGroups(parameter, moment, bytes, scales, statistics);
  }
  // Row by row, so that a large tensor needs no copy of four times its size.
  std::vector<float> values(geometry.row_length);
  const Geometry one{1, geometry.row_length, geometry.groups_per_row};
  const std::uint64_t element = BytesOf(moment.codes->dtype);
  for (std::uint64_t row = 0; row < geometry.rows; ++row) {
    DecodeMoments(
        moment.kind, parameter.codec, one, bytes.data() + row * geometry.row_length * element,
        scales.empty() ? nullptr : scales.data() + row * geometry.groups_per_row, values.data());
    for (const float value : values) {
      if (!std::isfinite(value)) ++statistics.nonfinite;
      if (value == 0.0F) ++statistics.zeros;
    }
    CheckNotNegative(moment, values, row * geometry.row_length);
  }
  return statistics;
}

void CheckState(const OptimizerState& state) {
  std::vector<std::exception_ptr> errors(state.parameters.size());
  auto check = [&](std::uint64_t i) {
    try {
      CheckScalars(state.parameters[i]);
      for (const MomentTensors& moment : state.parameters[i].moments) {
        CheckValues(state.parameters[i], moment);
      }
    } catch (...) {
      errors[i] = std::current_exception();
    }
  };
  cpu::ParallelFor(state.parameters.size(), check);
  for (const std::exception_ptr& error : errors) {
    if (error) std::rethrow_exception(error);
  }
}

std::uint64_t CheckWeights(const ParameterState& parameter) {
  CheckScalars(parameter);
  if (parameter.weight == nullptr) return 0;
  std::vector<std::byte> weight_storage;
  std::vector<std::byte> correction_storage;
  WeightStorage storage;
  storage.dtype = parameter.weight->dtype == FileDType::kF32    ? DType::kFloat32
                  : parameter.weight->dtype == FileDType::kBF16 ? DType::kBFloat16
                                                                : DType::kFloat16;
  // The library takes addresses that it may write to; a join only reads.
  storage.weight =
      const_cast<std::byte*>(InMemoryOrder(*parameter.weight, parameter, weight_storage).data());
  if (parameter.correction != nullptr) {
    storage.correction = const_cast<std::byte*>(
        InMemoryOrder(*parameter.correction, parameter, correction_storage).data());
    storage.correction_bits = parameter.correction->dtype == FileDType::kI8 ? 8 : 16;
  }
  std::vector<float> master(parameter.elements());
  JoinMasterWeights(storage, master.size(), master.data());
  return static_cast<std::uint64_t>(
      std::count_if(master.begin(), master.end(), [](float x) { return !std::isfinite(x); }));
}

}  // namespace flashoptim

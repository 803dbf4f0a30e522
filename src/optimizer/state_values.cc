// Whether every stored value of a state has a meaning (docs/format.md, sections 4 to 6).
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "checkpoint/strict_json.h"
#include "core/tensor_task.h"
#include "cpu/scalar.h"
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

struct Codes {
  const FileTensor& tensor;
  Moment kind;
  std::span<const std::byte> bytes;
  // The magnitude of code i, the largest there is, and whether it marks a non-finite element.
  int Magnitude(std::uint64_t i) const {
    const int code = kind == Moment::kFirst ? std::to_integer<std::int8_t>(bytes[i])
                                            : std::to_integer<std::uint8_t>(bytes[i]);
    return std::abs(code);
  }
  int Largest() const { return kind == Moment::kFirst ? 127 : 255; }
  bool Marks(std::uint64_t i) const { return Magnitude(i) == (kind == Moment::kFirst ? 128 : 0); }
};

// One group of codes under its scale.
void CheckGroup(const Codes& codes, std::uint64_t begin, std::uint64_t end, float scale,
                float floor, std::uint64_t group, MomentStatistics& statistics) {
  const std::uint32_t bits = L::Bits(scale);
  const bool flagged = (bits & scalar::kScaleFlag) != 0;
  const float value = L::AsFloat(bits & ~scalar::kScaleFlag);
  if (!std::isfinite(value) || !(value >= floor)) {
    Fail(codes.tensor, "the scale of group " + std::to_string(group) + " is " +
                           std::to_string(value) + ", which no encoding produces");
  }
  std::uint64_t marked = 0;
  std::uint64_t largest = 0;
  for (std::uint64_t i = begin; i < end; ++i) {
    if (codes.Marks(i)) {
      ++marked;
    } else if (codes.Magnitude(i) == codes.Largest()) {
      ++largest;
    }
  }
  if (flagged != (marked != 0)) {
    Fail(codes.tensor, "group " + std::to_string(group) +
                           (flagged ? " is flagged as not finite and has no such element"
                                    : " has an element that is marked as not finite and no flag"));
  }
  statistics.flagged_groups += flagged ? 1U : 0U;
  statistics.fresh_groups += value == floor ? 1U : 0U;
  // A fresh second moment has the largest code everywhere.
  if (value != floor && largest > 1) statistics.saturated += largest - 1;
  statistics.smallest_scale =
      statistics.groups == 0 ? value : std::min(statistics.smallest_scale, value);
  statistics.largest_scale = std::max(statistics.largest_scale, value);
  ++statistics.groups;
}

float FloorOf(Moment kind, Codec codec) {
  return kind == Moment::kFirst ? FreshFirstScale() : FreshSecondScale(codec);
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
    const Codes codes{*moment.codes, moment.kind, bytes};
    const float floor = FloorOf(moment.kind, parameter.codec);
    for (std::uint64_t group = 0; group < scales.size(); ++group) {
      const std::uint64_t row = group / geometry.groups_per_row;
      const std::uint64_t in_row = group % geometry.groups_per_row * kGroupSize;
      const std::uint64_t begin = row * geometry.row_length + in_row;
      const std::uint64_t end =
          row * geometry.row_length + std::min(in_row + kGroupSize, geometry.row_length);
      CheckGroup(codes, begin, end, scales[group], floor, group, statistics);
    }
  }
  // Row by row, so that a large tensor needs no copy of four times its size.
  std::vector<float> values(geometry.row_length);
  const Geometry one{1, geometry.row_length, geometry.groups_per_row};
  const std::uint64_t element = BytesOf(moment.codes->dtype);
  for (std::uint64_t row = 0; row < geometry.rows; ++row) {
    DecodeMoments(
        moment.kind, parameter.codec, one, bytes.data() + row * geometry.row_length * element,
        scales.empty() ? nullptr : scales.data() + row * geometry.groups_per_row, values.data());
    for (std::uint64_t i = 0; i < values.size(); ++i) {
      if (!std::isfinite(values[i])) ++statistics.nonfinite;
      if (values[i] == 0.0F) ++statistics.zeros;
      if (moment.kind == Moment::kSecond && values[i] < 0.0F) {
        Fail(*moment.codes, "element " + std::to_string(row * geometry.row_length + i) + " is " +
                                std::to_string(values[i]) +
                                ", and a second moment is never negative");
      }
    }
  }
  return statistics;
}

std::uint64_t CheckWeights(const ParameterState& parameter) {
  const float step = Copy<float>(*parameter.step).at(0);
  if (!(step >= 0.0F) || step > kLargestStep || step != std::floor(step)) {
    Fail(*parameter.step, "the step count is " + std::to_string(step) + ", not a whole number");
  }
  if (Copy<std::int64_t>(*parameter.stream_key).at(0) < 0) {
    Fail(*parameter.stream_key, "the key of the random stream is negative");
  }
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

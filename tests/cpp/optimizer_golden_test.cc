// The optimizer of the C++ API against the golden vectors: the fresh state that it makes and every
// byte of state after each step, under the names of docs/format.md, section 9.
#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <vector>

#include "flashoptim/layout.h"
#include "flashoptim/optimizer.h"
#include "golden.h"

namespace flashoptim {
namespace {

using nlohmann::json;
using testing::LoadGolden;
using testing::Number;
using testing::Words;

DType DTypeOf(const json& name) {
  if (name == "bf16") return DType::kBFloat16;
  return name == "fp16" ? DType::kFloat16 : DType::kFloat32;
}

Codec CodecOf(const json& name) {
  if (name == "none") return Codec::kNone;
  return name == "root" ? Codec::kRoot : Codec::kSoftsign;
}

std::vector<std::byte> Bytes(const json& column, std::size_t elements) {
  const auto digits = static_cast<unsigned>(column.get<std::string>().size() / elements);
  const auto words = Words(column, digits);
  std::vector<std::byte> bytes(words.size() * (digits / 2));
  for (std::size_t i = 0; i < words.size(); ++i) {
    std::memcpy(bytes.data() + i * (digits / 2), &words[i], digits / 2);  // little-endian
  }
  return bytes;
}

template <class T>
void ReadCommon(const Hyperparameters& h, T& options) {
  options.lr = h.lr;
  options.weight_decay = h.weight_decay;
  options.maximize = h.maximize;
  if constexpr (requires { options.decouple_lr; }) {
    options.decouple_lr = h.weight_decay_kind == WeightDecay::kFullyDecoupled;
    if (options.decouple_lr) options.initial_lr = h.initial_lr;
  }
  if constexpr (requires { options.momentum; }) {
    options.momentum = h.momentum;
    options.dampening = h.dampening;
    options.nesterov = h.nesterov;
  } else {
    options.beta1 = h.beta1;
    options.beta2 = h.beta2;
  }
  if constexpr (requires { options.eps; }) options.eps = h.eps;
}

Options OptionsOf(const json& record) {
  const json& hyper = record.at("hyper");
  const auto rule = hyper.at("rule").get<std::string>();
  Options options = SgdOptions{};
  if (rule == "sgdw") options = SgdwOptions{};
  if (rule == "adam") options = AdamOptions{};
  if (rule == "adamw") options = AdamWOptions{};
  if (rule == "lion") options = LionOptions{};
  std::visit(
      [&](auto& chosen) {
        ReadCommon(testing::HyperparametersOf(hyper), chosen);
        if constexpr (requires { chosen.amsgrad; }) {
          chosen.amsgrad = hyper.value("amsgrad", false);
        }
        chosen.storage.codec = CodecOf(record.at("codec"));
        chosen.storage.master_weight_bits = record.at("bits").get<std::int32_t>();
        chosen.storage.stochastic_rounding = record.at("stochastic").get<bool>();
        chosen.storage.seed = Number(record.at("seed"));
      },
      options);
  return options;
}

std::string ColumnOf(StateKind kind) {
  switch (kind) {
    case StateKind::kCorrection:
      return "correction";
    case StateKind::kFirstMoment:
      return "first";
    case StateKind::kFirstScale:
      return "first_scale";
    case StateKind::kSecondMoment:
      return "second";
    case StateKind::kSecondScale:
      return "second_scale";
    case StateKind::kMaximum:
      return "maximum";
    case StateKind::kMaximumScale:
      return "maximum_scale";
    default:
      return "";
  }
}

std::size_t ElementsOf(const StateEntry& tensor) { return tensor.bytes / SizeOf(tensor.dtype); }

void ExpectState(const Optimizer& optimizer, const std::vector<std::byte>& weight,
                 const json& expected, std::size_t elements) {
  EXPECT_EQ(weight, Bytes(expected.at("weight"), elements));
  std::size_t columns = 1;
  for (const StateEntry& tensor : optimizer.state()) {
    const std::string column = ColumnOf(tensor.kind);
    if (column.empty()) continue;
    ++columns;
    ASSERT_TRUE(expected.contains(column)) << tensor.name;
    std::vector<std::byte> bytes(tensor.bytes);
    optimizer.ReadState(tensor, bytes.data());
    ASSERT_EQ(bytes, Bytes(expected.at(column), ElementsOf(tensor))) << tensor.name;
  }
  EXPECT_EQ(columns, expected.size());
}

// Whether the optimizer would choose the codec of the record, and holds a whole tensor.
bool Fits(const json& record) {
  const Geometry geometry{record.at("rows").get<std::uint64_t>(),
                          record.at("row_length").get<std::uint64_t>(), 0};
  const Codec codec = CodecOf(record.at("codec"));
  return record.at("first_row") == 0 && EffectiveCodec(codec, 2, geometry) == codec;
}

void Follow(const json& record) {
  const auto rows = record.at("rows").get<std::int64_t>();
  const auto row_length = record.at("row_length").get<std::int64_t>();
  const auto elements = static_cast<std::size_t>(rows * row_length);
  std::vector<std::byte> weight = Bytes(record.at("fresh").at("weight"), elements);
  const DType gradient_dtype = DTypeOf(record.at("gradient_dtype"));

  Optimizer optimizer(
      OptionsOf(record),
      {{"w", weight.data(), DTypeOf(record.at("weight_dtype")), {rows, row_length}}});
  ExpectState(optimizer, weight, record.at("fresh"), elements);
  const StateEntry* key = optimizer.FindState(0, "stream_key");
  ASSERT_NE(key, nullptr);
  const auto wanted = static_cast<std::int64_t>(Number(record.at("key")));
  optimizer.WriteState(*key, &wanted);
  optimizer.SetGradientScale(record.at("hyper").value("gradient_scale", 1.0F));
  for (std::size_t step = 0; step < record.at("states").size(); ++step) {
    SCOPED_TRACE("step " + std::to_string(step + 1));
    const auto gradient = Bytes(record.at("gradients").at(step), elements);
    optimizer.SetGradient("w", gradient.data(), gradient_dtype);
    optimizer.Step();
    ASSERT_NO_FATAL_FAILURE(ExpectState(optimizer, weight, record.at("states").at(step), elements));
    ASSERT_EQ(optimizer.StepCount(0), step + 1);
  }
}

TEST(OptimizerGolden, EveryWholeTensor) {
  std::size_t followed = 0;
  for (const char* file : {"steps_covering", "steps_variants", "steps_shapes"}) {
    for (const json& record : LoadGolden(file)) {
      if (!Fits(record)) continue;
      SCOPED_TRACE(record.at("name").get<std::string>());
      ++followed;
      ASSERT_NO_FATAL_FAILURE(Follow(record));
    }
  }
  EXPECT_GE(followed, 80U);
}

}  // namespace
}  // namespace flashoptim

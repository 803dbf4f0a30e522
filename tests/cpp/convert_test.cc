// Conversions of whole tensors between stored state and floats.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <limits>
#include <stdexcept>
#include <string>
#include <vector>

#include "cases.h"
#include "flashoptim/convert.h"
#include "flashoptim/layout.h"
#include "flashoptim/plan.h"
#include "tensor_state.h"

namespace flashoptim {
namespace {

using testing::Random;
using testing::TensorState;

std::uint32_t Bits(float x) { return std::bit_cast<std::uint32_t>(x); }

std::vector<float> RandomFloats(std::size_t count, int low, int high) {
  Random random(21);
  std::vector<float> values(count);
  for (float& value : values) {
    value = std::bit_cast<float>(random.Image(DType::kFloat32, low, high));
  }
  return values;
}

// Weights and corrections of one format.
struct Stored {
  Stored(const testing::WeightCase& format, std::size_t count)
      : weight(count * 4),
        correction(count * 2),
        storage{weight.data(), format.dtype, correction.data(), format.correction_bits} {
    if (format.correction_bits == 0) storage.correction = nullptr;
  }
  std::vector<std::uint8_t> weight;
  std::vector<std::uint8_t> correction;
  WeightStorage storage;
};

class Weights : public ::testing::TestWithParam<testing::WeightCase> {
 protected:
  // What a join may be off by, relative to the magnitude.
  static float RelativeError() {
    const int below = GetParam().dtype == DType::kBFloat16 ? 8 : 11;
    if (GetParam().dtype == DType::kFloat32) return 0.0F;
    if (GetParam().correction_bits == 16) return 0.0F;
    return std::ldexp(1.0F, -below - GetParam().correction_bits);
  }
};

TEST_P(Weights, JoinRestoresWhatSplitStored) {
  // Several parallel pieces of work and a tail; magnitudes that fp16 holds as normal numbers.
  constexpr std::size_t kCount = 64 * 1024 * 3 + 17;
  const std::vector<float> master = RandomFloats(kCount, -14, 15);
  Stored stored(GetParam(), kCount);
  SplitMasterWeights(master.data(), kCount, stored.storage);
  std::vector<float> joined(kCount, -1.0F);
  JoinMasterWeights(stored.storage, kCount, joined.data());
  for (std::size_t i = 0; i < kCount; ++i) {
    ASSERT_LE(std::abs(joined[i] - master[i]), std::abs(master[i]) * RelativeError()) << i;
  }
  // A second time, nothing changes any more.
  Stored again(GetParam(), kCount);
  SplitMasterWeights(joined.data(), kCount, again.storage);
  EXPECT_EQ(again.weight, stored.weight);
  EXPECT_EQ(again.correction, stored.correction);
}

TEST_P(Weights, NonfiniteValuesSurvive) {
  const float infinity = std::numeric_limits<float>::infinity();
  const std::vector<float> master = {infinity, -infinity, std::nanf(""), 0.0F, -0.0F};
  Stored stored(GetParam(), master.size());
  SplitMasterWeights(master.data(), master.size(), stored.storage);
  std::vector<float> joined(master.size());
  JoinMasterWeights(stored.storage, master.size(), joined.data());
  for (const std::size_t i : {0U, 1U, 3U, 4U}) EXPECT_EQ(Bits(joined[i]), Bits(master[i]));
  EXPECT_TRUE(std::isnan(joined[2]));
}

TEST_P(Weights, NothingIsDoneForNoElements) {
  Stored stored(GetParam(), 1);
  SplitMasterWeights(nullptr, 0, stored.storage);
  JoinMasterWeights(stored.storage, 0, nullptr);
  EXPECT_EQ(stored.weight, std::vector<std::uint8_t>(4, 0));
}

INSTANTIATE_TEST_SUITE_P(Formats, Weights, ::testing::ValuesIn(testing::WeightCases()),
                         [](const auto& format) {
                           std::string name = format.param.name;
                           for (char& c : name) c = c == '+' ? '_' : c;
                           return name;
                         });

std::string Refusal(const std::function<void()>& action) {
  try {
    action();
  } catch (const std::invalid_argument& error) {
    return error.what();
  }
  return "nothing was refused";
}

TEST(ConvertErrors, NameTheValue) {
  std::uint16_t weight = 0;
  std::uint16_t correction = 0;
  float master = 0.0F;
  const auto join = [&](WeightStorage storage) {
    return Refusal([&] { JoinMasterWeights(storage, 1, &master); });
  };
  EXPECT_NE(join({&weight, DType::kBFloat16, &correction, 12}).find("not 12"), std::string::npos);
  EXPECT_NE(join({&weight, DType::kBFloat16, nullptr, 8}).find("missing"), std::string::npos);
  EXPECT_NE(join({&weight, DType::kBFloat16, &correction, 0}).find("null"), std::string::npos);
  EXPECT_NE(join({&master, DType::kFloat32, &correction, 8}).find("fp32"), std::string::npos);

  std::uint8_t code = 0;
  const Geometry one = {1, 1, 1};
  EXPECT_NE(Refusal([&] {
              DecodeMoments(Moment::kFirst, Codec::kRoot, one, &code, nullptr, &master);
            }).find("missing"),
            std::string::npos);
  EXPECT_NE(Refusal([&] {
              EncodeMoments(Moment::kFirst, Codec::kNone, one, &master, &code, &master);
            }).find("no scales"),
            std::string::npos);
}

struct MomentCase {
  const char* name;
  Moment moment;
  Codec codec;
};

constexpr MomentCase kMoments[] = {
    {"first_root", Moment::kFirst, Codec::kRoot},
    {"first_softsign", Moment::kFirst, Codec::kSoftsign},
    {"first_none", Moment::kFirst, Codec::kNone},
    {"second_root", Moment::kSecond, Codec::kRoot},
    {"second_softsign", Moment::kSecond, Codec::kSoftsign},
    {"second_none", Moment::kSecond, Codec::kNone},
};

class Moments : public ::testing::TestWithParam<MomentCase> {};

// Rows with tails and enough groups for several pieces of parallel work.
TEST_P(Moments, AreEncodedGroupByGroup) {
  const auto [name, moment, codec] = GetParam();
  for (const Geometry& geometry : {Geometry{1500, 70, 2}, Geometry{1, 1, 1}, Geometry{3, 64, 1}}) {
    const std::size_t count = geometry.rows * geometry.row_length;
    std::vector<float> values = RandomFloats(count, -30, -10);
    if (moment == Moment::kSecond) {
      for (float& value : values) value = std::abs(value);
    }
    std::vector<float> codes((count + 3) / (codec == Codec::kNone ? 1 : 4) + 1);
    std::vector<float> scales(geometry.rows * geometry.groups_per_row);
    float* scale = codec == Codec::kNone ? nullptr : scales.data();
    EncodeMoments(moment, codec, geometry, values.data(), codes.data(), scale);
    std::vector<float> decoded(count);
    DecodeMoments(moment, codec, geometry, codes.data(), scale, decoded.data());
    for (std::size_t i = 0; i < count; ++i) {
      if (codec == Codec::kNone) {
        ASSERT_EQ(decoded[i], values[i]);
      } else {
        // The same as for its group alone.
        const std::size_t row = i / geometry.row_length;
        const std::size_t start = row * geometry.row_length + i % geometry.row_length / 64 * 64;
        if (start != i) continue;
        const std::size_t size = std::min<std::size_t>(64, (row + 1) * geometry.row_length - start);
        std::uint8_t group[64];
        float group_scale = 0.0F;
        EncodeMoments(moment, codec, {1, size, 1}, &values[start], group, &group_scale);
        const auto* all = reinterpret_cast<const std::uint8_t*>(codes.data());
        ASSERT_TRUE(std::equal(group, group + size, all + start));
        ASSERT_EQ(group_scale,
                  scales[row * geometry.groups_per_row + (start - row * geometry.row_length) / 64]);
      }
    }
    std::vector<float> again(codes.size());
    std::vector<float> scales_again(scales.size());
    EncodeMoments(moment, codec, geometry, decoded.data(), again.data(),
                  scale == nullptr ? nullptr : scales_again.data());
    EXPECT_EQ(std::memcmp(again.data(), codes.data(), codes.size() * sizeof(float)), 0);
    EXPECT_EQ(scales_again, scales);
  }
}

INSTANTIATE_TEST_SUITE_P(Kinds, Moments, ::testing::ValuesIn(kMoments),
                         [](const auto& kind) { return std::string(kind.param.name); });

// The state that steps leave, taken apart into floats and put together again.
TEST(State, OfSteppedTensorsComesBackByteForByte) {
  for (const testing::StepCase& step_case : testing::ThinCases()) {
    if (step_case.values != testing::Values::kOrdinary) continue;
    const testing::Shape shape = {5, 130, 0};
    TensorState tensor(step_case, shape, 9);
    Plan plan = testing::PlanOf({&tensor});
    for (int step = 1; step <= 6; ++step) {
      tensor.FillGradient(step);
      testing::SetGradients(plan, {&tensor});
      plan.Step();
    }
    const Geometry geometry = {shape.rows, shape.row_length, 3};
    TensorState copy(step_case, shape, 10);
    copy.step() = tensor.step();
    std::vector<float> values(tensor.elements());
    const auto storage = [&](TensorState& state) {
      return WeightStorage{state.buffer(testing::kWeight).As<void>(), step_case.weight.dtype,
                           state.buffer(testing::kCorrection).As<void>(),
                           step_case.weight.correction_bits};
    };
    JoinMasterWeights(storage(tensor), values.size(), values.data());
    SplitMasterWeights(values.data(), values.size(), storage(copy));
    const auto convert = [&](Moment moment, testing::Slot codes, testing::Slot scales) {
      if (tensor.buffer(codes).empty()) return;
      DecodeMoments(moment, step_case.codec, geometry, tensor.buffer(codes).As<void>(),
                    tensor.buffer(scales).As<float>(), values.data());
      EncodeMoments(moment, step_case.codec, geometry, values.data(), copy.buffer(codes).As<void>(),
                    copy.buffer(scales).As<float>());
    };
    convert(Moment::kFirst, testing::kFirst, testing::kFirstScale);
    convert(Moment::kSecond, testing::kSecond, testing::kSecondScale);
    convert(Moment::kSecond, testing::kMaximum, testing::kMaximumScale);
    ASSERT_EQ(copy.DifferenceFrom(tensor), "");
  }
}

}  // namespace
}  // namespace flashoptim

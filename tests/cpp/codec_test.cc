// The moment codecs (docs/format.md, 5 to 7) over all codes and a wide range of scales.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "flashoptim/convert.h"
#include "flashoptim/layout.h"
#include "tensor_state.h"

namespace flashoptim {
namespace {

using testing::Random;

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();

std::uint32_t Bits(float x) { return std::bit_cast<std::uint32_t>(x); }
float FromBits(std::uint32_t bits) { return std::bit_cast<float>(bits); }

struct CodecCase {
  const char* name;
  Moment moment;
  Codec codec;
  int lowest_code;  // that an ordinary group can hold
  int top_code;
  std::uint32_t lowest_scale;
  std::uint32_t highest_scale;
  std::uint32_t scale_step;  // between scales that can occur
};

constexpr CodecCase kCases[] = {
    {"root_first", Moment::kFirst, Codec::kRoot, -127, 127, 0x1b800000U, 0x7f7ffffeU, 2},
    {"root_second", Moment::kSecond, Codec::kRoot, 1, 255, 0x0d800000U, 0x7f7ffffcU, 4},
    {"softsign_first", Moment::kFirst, Codec::kSoftsign, -127, 127, 0x1b800000U, 0x7f7ffffeU, 2},
    {"softsign_second", Moment::kSecond, Codec::kSoftsign, 1, 255, 0x26800000U, 0x5f7ffffeU, 2},
};

// The lowest and highest scale, and several of every binade between.
std::vector<float> Scales(const CodecCase& codec) {
  Random random(7);
  std::vector<std::uint32_t> images = {codec.lowest_scale, codec.lowest_scale + codec.scale_step,
                                       codec.highest_scale, codec.highest_scale - codec.scale_step};
  for (std::uint32_t binade = codec.lowest_scale; binade < codec.highest_scale;
       binade += 0x800000U) {
    images.push_back(binade);
    for (int i = 0; i < 12; ++i) {
      const auto fraction = static_cast<std::uint32_t>(random.Below(0x800000U));
      images.push_back((binade + fraction) & ~(codec.scale_step - 1U));
    }
  }
  std::vector<float> scales;
  scales.reserve(images.size());
  for (const std::uint32_t image : images) {
    scales.push_back(FromBits(std::min(image, codec.highest_scale)));
  }
  return scales;
}

std::vector<float> Decode(const CodecCase& codec, const std::vector<std::uint8_t>& codes,
                          float scale) {
  std::vector<float> values(codes.size());
  DecodeMoments(codec.moment, codec.codec, {1, codes.size(), 1}, codes.data(), &scale,
                values.data());
  return values;
}

struct Encoded {
  std::vector<std::uint8_t> codes;
  float scale;
};

Encoded Encode(const CodecCase& codec, const std::vector<float>& values) {
  Encoded encoded = {std::vector<std::uint8_t>(values.size()), -1.0F};
  EncodeMoments(codec.moment, codec.codec, {1, values.size(), 1}, values.data(),
                encoded.codes.data(), &encoded.scale);
  return encoded;
}

// Codes that decode to something that a group of this scale can hold. A second moment below 2^-100
// counts as 2^-100 when plain floats are encoded; for the lowest codes of small scales there is no
// such float.
bool IsUsable(const CodecCase& codec, int code, float scale) {
  if (codec.moment == Moment::kFirst) return true;
  const float value = Decode(codec, {static_cast<std::uint8_t>(code)}, scale)[0];
  return value >= 0x1p-100F && value <= Decode(codec, {255}, scale)[0];
}

class EveryCodec : public ::testing::TestWithParam<CodecCase> {};

TEST_P(EveryCodec, EncodesWhatItDecoded) {
  const CodecCase& codec = GetParam();
  for (const float scale : Scales(codec)) {
    // A code that is not the top one needs the top one beside it, which holds the scale.
    std::vector<std::uint8_t> group = {static_cast<std::uint8_t>(codec.top_code)};
    for (int code = codec.lowest_code; code <= codec.top_code; ++code) {
      if (IsUsable(codec, code, scale)) group.push_back(static_cast<std::uint8_t>(code));
      if (group.size() < kGroupSize && code != codec.top_code) continue;
      const Encoded again = Encode(codec, Decode(codec, group, scale));
      ASSERT_EQ(Bits(again.scale), Bits(scale));
      ASSERT_EQ(again.codes, group) << "scale " << scale;
      group.resize(1);
    }
  }
}

TEST_P(EveryCodec, TopCodeIsTheScale) {
  const CodecCase& codec = GetParam();
  // softsign keeps the root of the second moment.
  const bool squared = codec.moment == Moment::kSecond && codec.codec == Codec::kSoftsign;
  for (const float scale : Scales(codec)) {
    const float top = Decode(codec, {static_cast<std::uint8_t>(codec.top_code)}, scale)[0];
    ASSERT_EQ(top, squared ? scale * scale : scale) << "scale " << scale;
    if (codec.moment == Moment::kFirst) {
      ASSERT_EQ(Decode(codec, {0x81}, scale)[0], -scale);
    }
  }
}

TEST_P(EveryCodec, IsMonotonicAndOdd) {
  const CodecCase& codec = GetParam();
  for (const float scale : Scales(codec)) {
    float before = -kInfinity;
    for (int code = codec.lowest_code; code <= codec.top_code; ++code) {
      if (!IsUsable(codec, code, scale)) continue;
      const float value = Decode(codec, {static_cast<std::uint8_t>(code)}, scale)[0];
      ASSERT_GT(value, before) << "code " << code << ", scale " << scale;
      before = value;
      if (codec.moment == Moment::kSecond) continue;
      ASSERT_EQ(Decode(codec, {static_cast<std::uint8_t>(-code)}, scale)[0], -value);
    }
    if (codec.moment == Moment::kFirst) {
      ASSERT_EQ(Bits(Decode(codec, {0}, scale)[0]), 0U);
    }
  }
}

// Between two neighbouring codes, every float goes to one of them.
TEST_P(EveryCodec, RoundsToANeighbour) {
  const CodecCase& codec = GetParam();
  Random random(8);
  for (const float scale : {FromBits(0x3f9d3a74U), FromBits(0x2b4c1e58U)}) {
    const float top = Decode(codec, {static_cast<std::uint8_t>(codec.top_code)}, scale)[0];
    for (int code = codec.lowest_code; code < codec.top_code; ++code) {
      const float low = Decode(codec, {static_cast<std::uint8_t>(code)}, scale)[0];
      const float high = Decode(codec, {static_cast<std::uint8_t>(code + 1)}, scale)[0];
      std::vector<float> values = {top};
      while (values.size() < kGroupSize) {
        const auto part = static_cast<float>(random.Below(1 << 20)) * 0x1p-20F;
        values.push_back(std::clamp(low + (high - low) * part, low, high));
      }
      const Encoded encoded = Encode(codec, values);
      for (std::size_t i = 1; i < values.size(); ++i) {
        const int got = codec.moment == Moment::kFirst ? static_cast<std::int8_t>(encoded.codes[i])
                                                       : encoded.codes[i];
        ASSERT_TRUE(got == code || got == code + 1) << values[i] << " became " << got;
      }
    }
  }
}

TEST_P(EveryCodec, NonfiniteElementsLeaveTheOthersAlone) {
  const CodecCase& codec = GetParam();
  const bool first = codec.moment == Moment::kFirst;
  std::vector<float> values = {0.5F, 0.75F, 0.001F, 0.6F, 0.25F};
  const Encoded clean = Encode(codec, values);
  values.insert(values.begin() + 2, {kNan, kInfinity});
  if (first) values.push_back(-kInfinity);
  const Encoded marked = Encode(codec, values);
  EXPECT_EQ(Bits(marked.scale), Bits(clean.scale) | 1U);
  const std::uint8_t mark = first ? 0x80 : 0;
  std::vector<std::uint8_t> expected = clean.codes;
  expected.insert(expected.begin() + 2, {mark, mark});
  if (first) expected.push_back(mark);
  EXPECT_EQ(marked.codes, expected);

  const std::vector<float> decoded = Decode(codec, marked.codes, marked.scale);
  const std::vector<float> ordinary = Decode(codec, clean.codes, clean.scale);
  for (const std::size_t i : {2U, 3U}) {
    EXPECT_TRUE(first ? std::isnan(decoded[i]) : decoded[i] == kInfinity);
  }
  EXPECT_EQ(decoded[0], ordinary[0]);
  EXPECT_EQ(decoded[4], ordinary[2]);
  EXPECT_EQ(decoded[6], ordinary[4]);
}

TEST_P(EveryCodec, AGroupWithNothingFiniteHasTheFreshScale) {
  const CodecCase& codec = GetParam();
  const Encoded encoded = Encode(codec, {kNan, kInfinity});
  EXPECT_EQ(Bits(encoded.scale), codec.lowest_scale | 1U);
}

TEST_P(EveryCodec, FreshStateIsZeroOrTheFloor) {
  const CodecCase& codec = GetParam();
  if (codec.moment == Moment::kFirst) {
    EXPECT_EQ(Bits(FreshFirstScale()), codec.lowest_scale);
    EXPECT_EQ(Bits(Decode(codec, {0}, FreshFirstScale())[0]), 0U);
    return;
  }
  EXPECT_EQ(Bits(FreshSecondScale(codec.codec)), codec.lowest_scale);
  EXPECT_EQ(Decode(codec, {255}, FreshSecondScale(codec.codec))[0], 0x1p-100F);
  // Plain zeros are taken as the floor, which is the fresh state.
  const Encoded zeros = Encode(codec, {0.0F, -0.0F, 0x1p-110F});
  EXPECT_EQ(Bits(zeros.scale), codec.lowest_scale);
  EXPECT_EQ(zeros.codes, std::vector<std::uint8_t>(3, 255));
}

INSTANTIATE_TEST_SUITE_P(Codecs, EveryCodec, ::testing::ValuesIn(kCases),
                         [](const auto& codec) { return std::string(codec.param.name); });

// The root codecs are what their name says, up to a few per cent.
TEST(RootCodec, IsNearlyARoot) {
  const float scale = 1.0F;
  for (int code = 8; code <= 127; ++code) {
    const float value = Decode(kCases[0], {static_cast<std::uint8_t>(code)}, scale)[0];
    EXPECT_NEAR(std::sqrt(value) * 127.0F / static_cast<float>(code), 1.0F, 0.07F);
  }
  for (int code = 8; code <= 255; ++code) {
    const float value = Decode(kCases[1], {static_cast<std::uint8_t>(code)}, scale)[0];
    EXPECT_NEAR(std::sqrt(std::sqrt(value)) * 255.0F / static_cast<float>(code), 1.0F, 0.09F);
  }
}

TEST(NoCodec, StoresFloatsAndFlushesSmallFirstMoments) {
  const std::vector<float> values = {1.5F,      -0.0F, 0x1p-100F, -0x1.fffffep-101F,
                                     0x1p-149F, kNan,  -kInfinity};
  std::vector<float> first(values.size());
  std::vector<float> second(values.size());
  EncodeMoments(Moment::kFirst, Codec::kNone, {1, values.size(), 1}, values.data(), first.data(),
                nullptr);
  EncodeMoments(Moment::kSecond, Codec::kNone, {1, values.size(), 1}, values.data(), second.data(),
                nullptr);
  const std::vector<std::uint32_t> expected_first = {Bits(1.5F), 0U,          Bits(0x1p-100F), 0U,
                                                     0U,         0x7fc00000U, Bits(-kInfinity)};
  for (std::size_t i = 0; i < values.size(); ++i) {
    EXPECT_EQ(Bits(first[i]), expected_first[i]) << i;
    EXPECT_EQ(Bits(second[i]), Bits(values[i])) << i;
  }
}

}  // namespace
}  // namespace flashoptim

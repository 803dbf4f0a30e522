// The formulas of src/core, on scalar lanes, against the golden vectors of the independent
// reference. golden_steps_test.cc does the same for whole steps.
#include <gtest/gtest.h>

#include <bit>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "cpu/scalar.h"
#include "cpu/scalar_codecs.h"
#include "flashoptim/convert.h"
#include "golden.h"

namespace flashoptim {
namespace {

using L = scalar::Lanes;
using testing::Floats;
using testing::LoadGolden;
using testing::Number;
using testing::Words;

std::uint32_t Bits(float x) { return std::bit_cast<std::uint32_t>(x); }

Codec CodecOf(const nlohmann::json& table) {
  const auto name = table.at("codec").get<std::string>();
  if (name == "none") return Codec::kNone;
  return name == "root" ? Codec::kRoot : Codec::kSoftsign;
}

Moment MomentOf(const nlohmann::json& table) {
  return table.at("moment") == "first" ? Moment::kFirst : Moment::kSecond;
}

Geometry OneGroup(std::size_t size) { return {1, size, 1}; }

TEST(GoldenRandom, Mix) {
  const nlohmann::json golden = LoadGolden("random_stream");
  const auto inputs = Words(golden.at("mix").at("input"), 8);
  const auto outputs = Words(golden.at("mix").at("output"), 8);
  ASSERT_EQ(inputs.size(), outputs.size());
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    EXPECT_EQ(scalar::Mix<L>(inputs[i]), outputs[i]) << "input " << inputs[i];
  }
}

TEST(GoldenRandom, StreamSeeds) {
  const nlohmann::json golden = LoadGolden("random_stream");
  for (const auto& row : golden.at("stream_seeds")) {
    std::uint32_t seeds[4] = {};
    scalar::MakeStreamSeeds<scalar::Lanes>(Number(row.at("seed")), Number(row.at("key")),
                                           Number(row.at("step")), seeds);
    const auto expected = Words(row.at("streams"), 8);
    for (std::size_t i = 0; i < 4; ++i) EXPECT_EQ(seeds[i], expected.at(i)) << row.dump();
  }
}

TEST(GoldenRandom, BytesOfGroups) {
  const nlohmann::json golden = LoadGolden("random_stream");
  for (const auto& row : golden.at("quads")) {
    const std::uint32_t seeds[4] = {0, 0, Words(row.at("stream"), 8).at(0), 0};
    const cpu::GroupRandom random(seeds, Number(row.at("group")));
    const auto expected = Words(row.at("bytes"), 2);
    for (unsigned i = 0; i < kGroupSize; ++i) {
      EXPECT_EQ(random.Byte(core::kWeightFirst, i), expected.at(i)) << row.dump();
    }
  }
}

TEST(GoldenScalars, OfManySteps) {
  const nlohmann::json rows = LoadGolden("scalars");
  EXPECT_GE(rows.size(), 50U);
  for (const auto& row : rows) {
    const auto& hyper = row.at("hyper");
    const auto s = scalar::MakeScalars<core::StepScalars>(testing::RuleOf(hyper),
                                                          testing::HyperparametersOf(hyper),
                                                          row.at("step").get<std::uint64_t>());
    const std::pair<const char*, float> fields[] = {
        {"gradient_multiplier", s.gradient_multiplier},
        {"coupled_decay", s.coupled_decay},
        {"decay", s.decay},
        {"step_size", s.step_size},
        {"first_decay", s.first_decay},
        {"first_rate", s.first_rate},
        {"second_decay", s.second_decay},
        {"second_rate", s.second_rate},
        {"inverse_sqrt_bias_correction", s.inverse_sqrt_bias_correction},
        {"eps", s.eps},
    };
    std::size_t compared = 0;
    for (const auto& [name, value] : fields) {
      if (!row.at("scalars").contains(name)) continue;  // not of this rule
      EXPECT_EQ(Bits(value), Words(row.at("scalars").at(name), 8).at(0)) << name << row.dump();
      ++compared;
    }
    EXPECT_EQ(compared, row.at("scalars").size());
  }
}

template <class Format>
void CheckSplit(const nlohmann::json& table) {
  const bool stochastic = table.at("stochastic").get<bool>();
  const auto thetas = Words(table.at("theta"), 8);
  const auto weights = Words(table.at("weight"), 4);
  const auto corrections = Words(table.at("correction"), 4);
  std::vector<std::uint32_t> first(thetas.size());
  std::vector<std::uint32_t> second(thetas.size());
  if (stochastic) {
    first = Words(table.at("b3"), 2);
    second = Words(table.at("b4"), 2);
  }
  // Bits above the stored width are not part of the correction.
  const std::uint32_t stored = Format::kKept == 0 ? 0U : Format::kKept == 8 ? 0xffU : 0xffffU;
  for (std::size_t i = 0; i < thetas.size(); ++i) {
    const std::uint32_t increment =
        stochastic ? scalar::StochasticIncrement<L, Format>(first[i], second[i])
                   : scalar::NearestIncrement<Format>();
    std::uint32_t weight = 0;
    std::uint32_t correction = 0;
    scalar::SplitMaster<L, Format>(std::bit_cast<float>(thetas[i]), increment, weight, correction);
    ASSERT_EQ(weight & 0xffffU, weights.at(i)) << std::hex << thetas[i];
    ASSERT_EQ(correction & stored, corrections.at(i) & stored) << std::hex << thetas[i];
  }
}

template <class Format>
void CheckJoin(const nlohmann::json& table) {
  const auto weights = Words(table.at("weight"), 4);
  const auto corrections = Words(table.at("correction"), 4);
  const auto thetas = Words(table.at("theta"), 8);
  for (std::size_t i = 0; i < weights.size(); ++i) {
    const auto correction = static_cast<std::uint32_t>(static_cast<std::int16_t>(corrections[i]));
    EXPECT_EQ(Bits(scalar::JoinMaster<L, Format>(weights[i], correction)), thetas.at(i))
        << std::hex << weights[i] << " " << corrections[i];
  }
}

// Calls check.operator()<Format>() for the weight format of a table.
template <class Check>
void WithFormat(const nlohmann::json& table, const Check& check) {
  const int bits = table.at("bits").get<int>();
  if (table.at("weight_dtype") == "bf16") {
    if (bits == 16) return check.template operator()<scalar::Bfloat16Format<0>>();
    if (bits == 24) return check.template operator()<scalar::Bfloat16Format<8>>();
    return check.template operator()<scalar::Bfloat16Format<16>>();
  }
  if (bits == 16) return check.template operator()<scalar::Float16Format<0>>();
  if (bits == 24) return check.template operator()<scalar::Float16Format<8>>();
  return check.template operator()<scalar::Float16Format<16>>();
}

TEST(GoldenWeights, Split) {
  for (const auto& table : LoadGolden("split")) {
    SCOPED_TRACE(table.at("weight_dtype").dump() + " " + table.at("bits").dump());
    WithFormat(table, [&]<class Format>() { CheckSplit<Format>(table); });
  }
}

TEST(GoldenWeights, Join) {
  for (const auto& table : LoadGolden("join")) {
    SCOPED_TRACE(table.at("weight_dtype").dump() + " " + table.at("bits").dump());
    WithFormat(table, [&]<class Format>() { CheckJoin<Format>(table); });
  }
}

TEST(GoldenCodecs, DecodeAllCodes) {
  for (const auto& table : LoadGolden("decode")) {
    SCOPED_TRACE(table.at("codec").dump() + " " + table.at("moment").dump() + " " +
                 table.at("scale").dump());
    const float scale = Floats(table.at("scale")).at(0);
    const auto codes = Words(table.at("codes"), 2);
    const auto values = Words(table.at("values"), 8);
    ASSERT_GE(codes.size(), 40U);
    for (std::size_t i = 0; i < codes.size(); ++i) {
      const auto code = static_cast<std::uint8_t>(codes[i]);
      float value = -1.0F;
      DecodeMoments(MomentOf(table), CodecOf(table), OneGroup(1), &code, &scale, &value);
      EXPECT_EQ(Bits(value), values.at(i)) << "code " << codes[i];
    }
  }
}

TEST(GoldenCodecs, EncodePlainFloats) {
  int tables = 0;
  for (const auto& table : LoadGolden("encode")) {
    if (table.contains("random") || CodecOf(table) == Codec::kNone) continue;
    const auto values = Floats(table.at("values"));
    SCOPED_TRACE(table.dump());
    std::vector<std::uint8_t> codes(values.size());
    float scale = 0.0F;
    EncodeMoments(MomentOf(table), CodecOf(table), OneGroup(values.size()), values.data(),
                  codes.data(), &scale);
    EXPECT_EQ(Bits(scale), Words(table.at("scale"), 8).at(0));
    const auto expected = Words(table.at("codes"), 2);
    for (std::size_t i = 0; i < codes.size(); ++i) EXPECT_EQ(codes[i], expected.at(i)) << i;
    ++tables;
  }
  EXPECT_GE(tables, 60);
}

TEST(GoldenCodecs, EncodeWithoutCodec) {
  int tables = 0;
  for (const auto& table : LoadGolden("encode")) {
    if (CodecOf(table) != Codec::kNone) continue;
    const auto values = Floats(table.at("values"));
    std::vector<float> stored(values.size());
    EncodeMoments(MomentOf(table), Codec::kNone, OneGroup(values.size()), values.data(),
                  stored.data(), nullptr);
    const auto expected = Words(table.at("codes"), 8);
    for (std::size_t i = 0; i < stored.size(); ++i) EXPECT_EQ(Bits(stored[i]), expected.at(i));
    ++tables;
  }
  EXPECT_GE(tables, 10);
}

TEST(GoldenCodecs, EncodeWithRandomBytes) {
  using Root = scalar::RootSecond;
  int tables = 0;
  for (const auto& table : LoadGolden("encode")) {
    if (!table.contains("random")) continue;
    const auto values = Floats(table.at("values"));
    const auto random = Words(table.at("random"), 2);
    const auto codes = Words(table.at("codes"), 2);
    const Root::Encoder<L> encoder(Words(table.at("scale"), 8).at(0) & ~scalar::kScaleFlag);
    for (std::size_t i = 0; i < values.size(); ++i) {
      if (codes.at(i) == 0) continue;  // not finite
      EXPECT_EQ(((Root::FixedPoint<L>(encoder, values[i]) + random.at(i)) >> 8) & 0xffU, codes[i])
          << table.dump() << " " << i;
    }
    ++tables;
  }
  EXPECT_GE(tables, 10);
}

}  // namespace
}  // namespace flashoptim

// Tensors as matrices in memory order (docs/format.md, section 2).
#include <gtest/gtest.h>

#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

#include "flashoptim/layout.h"

namespace flashoptim {
namespace {

using Numbers = std::vector<std::int64_t>;

struct Dense {
  const char* name;
  Numbers sizes;
  Numbers strides;
  std::uint64_t rows;
  std::uint64_t row_length;
};

const Dense kDense[] = {
    {"scalar", {}, {}, 1, 1},
    {"vector", {10}, {1}, 1, 10},
    {"one_element", {1}, {1}, 1, 1},
    {"matrix", {3, 70}, {70, 1}, 3, 70},
    {"transposed", {70, 3}, {1, 70}, 3, 70},
    {"three_dimensions", {2, 3, 4}, {12, 4, 1}, 2, 12},
    {"permuted", {2, 3, 4}, {4, 8, 1}, 3, 8},
    {"middle_is_innermost", {2, 3, 4}, {12, 1, 3}, 2, 12},
    {"channels_last", {8, 3, 5, 5}, {75, 1, 15, 3}, 8, 75},
    {"channels_last_1x1", {8, 3, 1, 1}, {3, 1, 3, 3}, 8, 3},
    {"channels_last_one_channel", {8, 1, 5, 5}, {25, 1, 5, 1}, 8, 25},
    {"channels_last_one_output", {1, 3, 5, 5}, {75, 1, 15, 3}, 1, 75},
    {"channels_last_3d", {4, 3, 2, 2, 2}, {24, 1, 12, 6, 3}, 4, 24},
    {"leading_one", {1, 3, 4}, {12, 4, 1}, 1, 12},
    {"trailing_one", {3, 4, 1}, {4, 1, 1}, 3, 4},
    {"one_with_any_stride", {3, 1, 4}, {4, 999, 1}, 3, 4},
    {"one_beside_the_outermost", {5, 4, 1}, {1, 5, 5}, 4, 5},
    {"one_before_the_outermost", {5, 1, 4}, {1, 5, 5}, 4, 5},
    {"one_with_the_largest_stride", {5, 1, 4}, {1, 999, 5}, 4, 5},
    {"one_with_no_stride", {5, 1, 4}, {1, 0, 5}, 4, 5},
    {"first_of_one_with_the_largest_stride", {1, 4, 5}, {20, 1, 4}, 1, 20},
    {"first_of_one_with_any_stride", {1, 4, 5}, {1, 1, 4}, 1, 20},
    {"column", {5, 1}, {1, 1}, 5, 1},
    {"all_ones", {1, 1, 1}, {1, 1, 1}, 1, 1},
    {"empty", {0}, {1}, 0, 0},
    {"empty_matrix", {3, 0}, {1, 1}, 0, 0},
    {"empty_with_strange_strides", {4, 0, 2}, {7, 5, 3}, 0, 0},
};

class DenseTensors : public ::testing::TestWithParam<Dense> {};

TEST_P(DenseTensors, HaveRowsInMemoryOrder) {
  const Dense& dense = GetParam();
  const Geometry geometry = GeometryOf(dense.sizes, dense.strides);
  EXPECT_EQ(geometry.rows, dense.rows);
  EXPECT_EQ(geometry.row_length, dense.row_length);
  EXPECT_EQ(geometry.groups_per_row, (dense.row_length + 63) / 64);
}

INSTANTIATE_TEST_SUITE_P(Layouts, DenseTensors, ::testing::ValuesIn(kDense),
                         [](const auto& dense) { return std::string(dense.param.name); });

struct Refused {
  const char* name;
  Numbers sizes;
  Numbers strides;
};

const Refused kRefused[] = {
    {"row_padding", {3, 70}, {72, 1}},  {"every_second", {10}, {2}},
    {"expanded", {3, 4}, {0, 1}},       {"overlapping", {3, 4}, {2, 1}},
    {"sliced_columns", {4, 2}, {4, 1}}, {"hole_in_the_middle", {2, 3, 4}, {24, 4, 1}},
    {"negative_stride", {4}, {-1}},     {"negative_size", {-1, 4}, {4, 1}},
    {"too_few_strides", {2, 3}, {3}},   {"too_many_strides", {2}, {3, 1}},
};

class RefusedTensors : public ::testing::TestWithParam<Refused> {};

TEST_P(RefusedTensors, NameSizesOrStrides) {
  try {
    GeometryOf(GetParam().sizes, GetParam().strides);
    FAIL() << "accepted";
  } catch (const std::invalid_argument& error) {
    EXPECT_NE(std::string(error.what()).find("[" + std::to_string(GetParam().sizes[0])),
              std::string::npos)
        << error.what();
  }
}

INSTANTIATE_TEST_SUITE_P(Layouts, RefusedTensors, ::testing::ValuesIn(kRefused),
                         [](const auto& refused) { return std::string(refused.param.name); });

TEST(Geometry, CountsGroupsOfRows) {
  for (std::int64_t length = 1; length <= 300; ++length) {
    const Geometry geometry = GeometryOf(Numbers{5, length}, Numbers{length, 1});
    EXPECT_EQ(geometry.groups_per_row, static_cast<std::uint64_t>((length + 63) / 64));
  }
  const std::int64_t large = std::int64_t{1} << 33;
  EXPECT_EQ(GeometryOf(Numbers{large, 65}, Numbers{65, 1}).rows, std::uint64_t{1} << 33);
}

TEST(EffectiveCodecOf, SmallVectorsStayPlain) {
  for (const Codec asked : {Codec::kRoot, Codec::kSoftsign}) {
    EXPECT_EQ(EffectiveCodec(asked, 0, {1, 1, 1}), Codec::kNone);
    EXPECT_EQ(EffectiveCodec(asked, 1, {1, 65536, 1024}), Codec::kNone);
    EXPECT_EQ(EffectiveCodec(asked, 1, {1, 65537, 1025}), asked);
    EXPECT_EQ(EffectiveCodec(asked, 2, {1, 65536, 1024}), asked);
  }
}

TEST(EffectiveCodecOf, ShortRowsStayPlain) {
  for (const Codec asked : {Codec::kRoot, Codec::kSoftsign}) {
    EXPECT_EQ(EffectiveCodec(asked, 2, {1000000, 3, 1}), Codec::kNone);
    EXPECT_EQ(EffectiveCodec(asked, 2, {1000000, 4, 1}), asked);
    EXPECT_EQ(EffectiveCodec(asked, 4, {2, 4, 1}), asked);
    EXPECT_EQ(EffectiveCodec(asked, 2, {}), Codec::kNone);
  }
}

TEST(EffectiveCodecOf, NoneStaysNone) {
  EXPECT_EQ(EffectiveCodec(Codec::kNone, 2, {1000, 1000, 16}), Codec::kNone);
  EXPECT_EQ(EffectiveCodec(Codec::kNone, 1, {1, 1000000, 15625}), Codec::kNone);
}

}  // namespace
}  // namespace flashoptim

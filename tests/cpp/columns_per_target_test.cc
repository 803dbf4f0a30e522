// A shard that holds a part of every row has the bits of the whole tensor, random ones included.
#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "cases.h"
#include "core/tensor_task.h"
#include "flashoptim/plan.h"
#include "tensor_state.h"

namespace flashoptim {
namespace {

using testing::Shape;
using testing::Slot;
using testing::StepCase;
using testing::TensorState;

constexpr std::uint64_t kSeed = 5;
constexpr int kSteps = 5;

bool IsScale(int slot) {
  return slot == testing::kFirstScale || slot == testing::kSecondScale ||
         slot == testing::kMaximumScale;
}

// Columns [begin, begin + length) of a tensor, in memory of their own.
struct Columns {
  std::uint64_t begin;
  std::uint64_t length;
  TensorState state;

  Columns(const StepCase& step_case, Shape whole, std::uint64_t first, std::uint64_t count)
      : begin(first), length(count), state(step_case, {whole.rows, count, whole.steps}, kSeed) {}

  // Copies what both hold of a slot, from the whole or into it.
  void Copy(TensorState& whole, Slot slot, bool into_whole) {
    if (state.buffer(slot).empty()) return;
    const std::uint64_t rows = whole.shape().rows;
    const std::size_t here = state.buffer(slot).size() / rows;
    const std::size_t there = whole.buffer(slot).size() / rows;
    const std::size_t unit =
        IsScale(slot) ? here / core::GroupsPerRow(length) : here / static_cast<std::size_t>(length);
    const std::size_t offset = unit * (IsScale(slot) ? begin / kGroupSize : begin);
    for (std::uint64_t row = 0; row < rows; ++row) {
      std::byte* part = state.buffer(slot).data() + row * here;
      std::byte* place = whole.buffer(slot).data() + row * there + offset;
      into_whole ? std::memcpy(place, part, here) : std::memcpy(part, place, here);
    }
  }

  TensorBinding Binding(Shape whole) {
    TensorBinding binding = state.Binding();
    binding.first_group = begin / kGroupSize;
    binding.group_stride = core::GroupsPerRow(whole.row_length);
    binding.first_in_group = static_cast<std::uint32_t>(begin % kGroupSize);
    return binding;
  }
};

void ExpectColumnsAgree(const StepCase& step_case, Shape shape,
                        const std::vector<std::uint64_t>& lengths) {
  TensorState whole(step_case, shape, kSeed);
  TensorState joined(step_case, shape, kSeed);
  std::vector<std::unique_ptr<Columns>> parts;
  std::vector<TensorBinding> bindings;
  std::uint64_t begin = 0;
  for (const std::uint64_t length : lengths) {
    parts.push_back(std::make_unique<Columns>(step_case, shape, begin, length));
    for (int slot = 0; slot < testing::kSlots; ++slot) {
      parts.back()->Copy(joined, static_cast<Slot>(slot), false);
    }
    bindings.push_back(parts.back()->Binding(shape));
    begin += length;
  }
  ASSERT_EQ(begin, shape.row_length);
  Plan plan = testing::PlanOf({&whole});
  Plan cut(step_case.rule.rule, std::move(bindings), 1);
  cut.SetHyperparameters(0, step_case.rule.hyper);
  for (int step = 1; step <= kSteps; ++step) {
    whole.FillGradient(step);
    testing::SetGradients(plan, {&whole});
    plan.Step();
    for (std::size_t i = 0; i < parts.size(); ++i) {
      parts[i]->Copy(whole, testing::kGradient, false);
      cut.SetGradient(i, parts[i]->state.CurrentGradient());
    }
    cut.Step();
  }
  for (const auto& part : parts) {
    for (int slot = 0; slot < testing::kGradient; ++slot) {
      part->Copy(joined, static_cast<Slot>(slot), true);
    }
    ASSERT_TRUE(part->state.GuardsAreIntact());
  }
  joined.step() = whole.step();
  ASSERT_EQ(joined.DifferenceFrom(whole), "");
}

TEST(Columns, AgreeWithTheWhole) {
  for (const StepCase& step_case : testing::ThinCases()) {
    ASSERT_NO_FATAL_FAILURE(ExpectColumnsAgree(step_case, {7, 256, kSteps}, {128, 128}));
    ASSERT_NO_FATAL_FAILURE(ExpectColumnsAgree(step_case, {9, 300, kSteps}, {64, 192, 44}));
    // Chunks of 256 groups begin inside rows.
    ASSERT_NO_FATAL_FAILURE(ExpectColumnsAgree(step_case, {130, 450, kSteps}, {320, 130}));
  }
}

// Moments in fp32 need no whole groups.
TEST(Columns, CutInsideGroupsAgreeWithTheWhole) {
  for (StepCase step_case : testing::ThinCases()) {
    step_case.codec = Codec::kNone;
    for (const bool stochastic : {false, true}) {
      step_case.rule.hyper.stochastic_rounding = stochastic;
      ASSERT_NO_FATAL_FAILURE(ExpectColumnsAgree(step_case, {1, 130, kSteps}, {33, 33, 63, 1}));
      ASSERT_NO_FATAL_FAILURE(ExpectColumnsAgree(step_case, {7, 300, kSteps}, {50, 70, 140, 40}));
    }
  }
}

std::string ErrorOf(const TensorBinding& binding, Rule rule) {
  try {
    Plan(rule, {binding}, 1);
  } catch (const std::invalid_argument& error) {
    return error.what();
  }
  return "";
}

TEST(Columns, WhatBeginsInsideAGroupOfCodesIsRefused) {
  for (const StepCase& step_case : testing::ThinCases()) {
    TensorState tensor(step_case, {1, 200, 1}, kSeed);
    TensorBinding binding = tensor.Binding();
    binding.name = "bad";
    const bool codes = binding.codec != Codec::kNone;
    binding.first_in_group = 63;
    EXPECT_EQ(ErrorOf(binding, step_case.rule.rule),
              codes ? "tensor 'bad': it begins inside a group of the whole, and moments in 8 bits "
                      "need whole groups"
                    : "");
    binding.first_in_group = 64;
    EXPECT_EQ(ErrorOf(binding, step_case.rule.rule),
              "tensor 'bad': first_in_group 64 is not below 64");
  }
}

TEST(Columns, RowsLongerThanThoseOfTheWholeAreRefused) {
  TensorState tensor(testing::ThinCases().front(), {3, 200, 1}, kSeed);
  TensorBinding binding = tensor.Binding();
  binding.name = "bad";
  binding.group_stride = 3;
  EXPECT_EQ(ErrorOf(binding, tensor.step_case().rule.rule),
            "tensor 'bad': its rows have 4 groups, and those of the whole only 3");
}

}  // namespace
}  // namespace flashoptim

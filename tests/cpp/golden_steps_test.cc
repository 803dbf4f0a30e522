// Whole trajectories through Plan, on every CPU target, against the golden vectors: every byte of
// state after each step.
#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <string>

#include "core/tensor_task.h"
#include "flashoptim/plan.h"
#include "flashoptim/runtime.h"
#include "golden.h"
#include "tensor_state.h"

namespace flashoptim {
namespace {

using nlohmann::json;
using testing::Buffer;
using testing::LoadGolden;
using testing::Number;
using testing::Slot;
using testing::StepCase;
using testing::TensorState;
using testing::Words;

DType DTypeOf(const json& name) {
  if (name == "bf16") return DType::kBFloat16;
  return name == "fp16" ? DType::kFloat16 : DType::kFloat32;
}

// Writes words into a buffer as little-endian numbers of the width that fits.
void Fill(Buffer& buffer, const json& column, unsigned digits) {
  const auto words = Words(column, digits);
  const std::size_t width = digits / 2;
  ASSERT_EQ(words.size() * width, buffer.size());
  for (std::size_t i = 0; i < words.size(); ++i) {
    std::memcpy(buffer.data() + i * width, &words[i], width);
  }
}

struct Column {
  const char* name;
  Slot slot;
};

constexpr Column kColumns[] = {
    {"weight", testing::kWeight},   {"correction", testing::kCorrection},
    {"first", testing::kFirst},     {"first_scale", testing::kFirstScale},
    {"second", testing::kSecond},   {"second_scale", testing::kSecondScale},
    {"maximum", testing::kMaximum}, {"maximum_scale", testing::kMaximumScale},
};

void ExpectState(TensorState& tensor, const json& expected) {
  std::size_t columns = 0;
  for (const Column& column : kColumns) {
    const Buffer& buffer = tensor.buffer(column.slot);
    ASSERT_EQ(expected.contains(column.name), !buffer.empty()) << column.name;
    if (buffer.empty()) continue;
    ++columns;
    // Scales and unquantised moments are floats; the width of the others follows from the size.
    const auto text = expected.at(column.name).get<std::string>();
    const auto digits = static_cast<unsigned>(column.slot == testing::kFirstScale ||
                                                      column.slot == testing::kSecondScale ||
                                                      column.slot == testing::kMaximumScale
                                                  ? 8U
                                                  : text.size() / tensor.elements());
    Buffer wanted(buffer.size(), 0);
    Fill(wanted, expected.at(column.name), digits);
    for (std::size_t i = 0; i < buffer.size(); ++i) {
      ASSERT_EQ(buffer.data()[i], wanted.data()[i])
          << column.name << ", element " << i / (digits / 2);
    }
  }
  EXPECT_EQ(columns, expected.size());
}

StepCase CaseOf(const json& record) {
  const json& hyper = record.at("hyper");
  StepCase result;
  result.rule.name = record.at("name").get<std::string>();
  result.rule.rule = testing::RuleOf(hyper);
  Hyperparameters& h = result.rule.hyper;
  h = testing::HyperparametersOf(hyper);
  h.stochastic_rounding = record.at("stochastic").get<bool>();
  h.seed = Number(record.at("seed"));

  result.rule.second = result.rule.rule == Rule::kAdam;
  result.rule.maximum = hyper.value("amsgrad", false);
  result.rule.first = result.rule.rule != Rule::kSgd || h.momentum != 0.0;
  const auto codec = record.at("codec").get<std::string>();
  result.codec = codec == "none" ? Codec::kNone : codec == "root" ? Codec::kRoot : Codec::kSoftsign;
  result.weight.dtype = DTypeOf(record.at("weight_dtype"));
  result.weight.correction_bits =
      result.weight.dtype == DType::kFloat32 ? 0 : record.at("bits").get<int>() - 16;
  result.gradient_dtype = DTypeOf(record.at("gradient_dtype"));
  return result;
}

void Follow(const json& record) {
  const StepCase step_case = CaseOf(record);
  TensorState tensor(
      step_case,
      {record.at("rows").get<std::uint64_t>(), record.at("row_length").get<std::uint64_t>(), 0}, 0);
  const json& fresh = record.at("fresh");
  Fill(tensor.buffer(testing::kWeight), fresh.at("weight"),
       step_case.weight.dtype == DType::kFloat32 ? 8 : 4);
  ASSERT_NO_FATAL_FAILURE(ExpectState(tensor, fresh));

  TensorBinding binding = tensor.Binding();
  binding.first_group =
      record.at("first_row").get<std::uint64_t>() * core::GroupsPerRow(binding.row_length);
  binding.stream_key = Number(record.at("key"));
  Plan plan(step_case.rule.rule, {binding}, 1);
  plan.SetHyperparameters(0, step_case.rule.hyper);
  plan.SetGradientScale(record.at("hyper").value("gradient_scale", 1.0F));
  for (std::size_t step = 0; step < record.at("states").size(); ++step) {
    SCOPED_TRACE("step " + std::to_string(step + 1));
    Fill(tensor.buffer(testing::kGradient), record.at("gradients").at(step),
         step_case.gradient_dtype == DType::kFloat32 ? 8 : 4);
    plan.SetGradient(0, tensor.CurrentGradient());
    plan.Step();
    ASSERT_NO_FATAL_FAILURE(ExpectState(tensor, record.at("states").at(step)));
    ASSERT_EQ(tensor.step(), static_cast<float>(step + 1));
  }
  EXPECT_TRUE(tensor.GuardsAreIntact());
}

class GoldenSteps : public ::testing::TestWithParam<const char*> {};

TEST_P(GoldenSteps, EveryTarget) {
  const json records = LoadGolden(GetParam());
  EXPECT_GE(records.size(), 20U);
  for (const std::string& target : CpuTargets()) {
    SetCpuTarget(target);
    for (const json& record : records) {
      SCOPED_TRACE(target + ": " + record.at("name").get<std::string>());
      Follow(record);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Files, GoldenSteps,
                         ::testing::Values("steps_covering", "steps_variants", "steps_shapes"),
                         [](const auto& file) { return std::string(file.param); });

}  // namespace
}  // namespace flashoptim

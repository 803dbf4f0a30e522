// The optimizer of the C++ API: layouts, memory, queries, changed options, master weights.
#include "flashoptim/optimizer.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "flashoptim/layout.h"

namespace flashoptim {
namespace {

using Shape = std::vector<std::int64_t>;

std::int64_t Elements(const Shape& shape) {
  std::int64_t product = 1;
  for (const std::int64_t size : shape) product *= size;
  return product;
}

// bf16 weights of a small model, and their gradients.
struct Model {
  explicit Model(const std::vector<std::pair<std::string, Shape>>& tensors = {{"dense", {8, 70}},
                                                                              {"bias", {8}}}) {
    for (const auto& [name, shape] : tensors) {
      const auto count = static_cast<std::size_t>(Elements(shape));
      std::vector<std::uint16_t>& weight = weights.emplace_back(count);
      std::vector<float>& gradient = gradients.emplace_back(count);
      for (std::size_t i = 0; i < count; ++i) {
        weight[i] = static_cast<std::uint16_t>(0x3f80U + i % 64U);
        gradient[i] = 1e-3F * (static_cast<float>(i % 17U) - 8.0F);
      }
      parameters.push_back({name, weight.data(), DType::kBFloat16, shape});
    }
  }
  Model(const Model&) = delete;
  Model& operator=(const Model&) = delete;

  void SetGradients(Optimizer& optimizer) const {
    for (std::size_t i = 0; i < gradients.size(); ++i) {
      optimizer.SetGradient(i, gradients[i].data(), DType::kFloat32);
    }
  }

  std::vector<std::vector<std::uint16_t>> weights;
  std::vector<std::vector<float>> gradients;
  std::vector<Parameter> parameters;
};

TEST(OptimizerState, NamesDtypesAndShapesAreThoseOfTheFormat) {
  Model model;
  AdamWOptions options;
  options.amsgrad = true;
  const std::vector<ParameterGroup> groups = {{options, model.parameters}};
  struct Row {
    std::size_t parameter;
    const char* name;
    StateDType dtype;
    Shape shape;
    std::size_t bytes;
  };
  const std::vector<Row> rows = {
      {0, "step", StateDType::kFloat32, {}, 4},
      {0, "stream_key", StateDType::kInt64, {}, 8},
      {0, "weight_correction", StateDType::kInt8, {8, 70}, 560},
      {0, "exp_avg", StateDType::kInt8, {8, 70}, 560},
      {0, "exp_avg_scale", StateDType::kFloat32, {8, 2}, 64},
      {0, "exp_avg_sq", StateDType::kUInt8, {8, 70}, 560},
      {0, "exp_avg_sq_scale", StateDType::kFloat32, {8, 2}, 64},
      {0, "max_exp_avg_sq", StateDType::kUInt8, {8, 70}, 560},
      {0, "max_exp_avg_sq_scale", StateDType::kFloat32, {8, 2}, 64},
      {1, "step", StateDType::kFloat32, {}, 4},
      {1, "stream_key", StateDType::kInt64, {}, 8},
      {1, "weight_correction", StateDType::kInt8, {8}, 8},
      {1, "exp_avg", StateDType::kFloat32, {8}, 32},
      {1, "exp_avg_sq", StateDType::kFloat32, {8}, 32},
      {1, "max_exp_avg_sq", StateDType::kFloat32, {8}, 32},
  };
  const std::vector<StateEntry> layout = StateLayout(groups);
  const Optimizer optimizer{std::vector<ParameterGroup>(groups)};
  ASSERT_EQ(layout.size(), rows.size());
  ASSERT_EQ(optimizer.state().size(), rows.size());
  for (std::size_t i = 0; i < rows.size(); ++i) {
    SCOPED_TRACE(rows[i].name);
    EXPECT_EQ(layout[i].parameter, rows[i].parameter);
    EXPECT_EQ(layout[i].name, rows[i].name);
    EXPECT_EQ(layout[i].dtype, rows[i].dtype);
    EXPECT_EQ(layout[i].shape, rows[i].shape);
    EXPECT_EQ(layout[i].bytes, rows[i].bytes);
    EXPECT_EQ(layout[i].alignment, SizeOf(rows[i].dtype));
    EXPECT_EQ(layout[i].data, nullptr);
    EXPECT_EQ(optimizer.state()[i].name, rows[i].name);
    ASSERT_NE(optimizer.state()[i].data, nullptr);
  }
  EXPECT_EQ(optimizer.codec(0), Codec::kRoot);
  EXPECT_EQ(optimizer.codec(1), Codec::kNone);
  EXPECT_EQ(optimizer.FindState(1, "exp_avg_scale"), nullptr);
  EXPECT_EQ(optimizer.state(1).front().parameter, 1U);
  EXPECT_EQ(*static_cast<std::int64_t*>(optimizer.FindState(1, "stream_key")->data), 1);
}

TEST(OptimizerState, MomentsFollowTheRule) {
  const auto names = [](const Options& options) {
    Model model({{"w", {4, 64}}});
    std::string joined;
    const std::vector<ParameterGroup> groups = {{options, model.parameters}};
    for (const StateEntry& tensor : StateLayout(groups)) joined += tensor.name + " ";
    return joined;
  };
  const std::string common = "step stream_key weight_correction ";
  EXPECT_EQ(names(SgdOptions{}), common);
  EXPECT_EQ(names(SgdwOptions{.momentum = 0.9}), common + "momentum_buffer momentum_buffer_scale ");
  EXPECT_EQ(names(LionOptions{}), common + "exp_avg exp_avg_scale ");
  EXPECT_EQ(names(AdamOptions{.storage = {.quantize = false, .master_weight_bits = 16}}),
            "step stream_key exp_avg exp_avg_sq ");
}

TEST(OptimizerState, CodesOfAChannelsLastWeightHaveItsStrides) {
  Model model({{"conv", {2, 3, 4, 5}}});
  model.parameters[0].strides = {60, 1, 15, 3};
  const Optimizer optimizer(AdamWOptions{}, model.parameters);
  EXPECT_EQ(optimizer.FindState(0, "exp_avg")->strides, (Shape{60, 1, 15, 3}));
  EXPECT_EQ(optimizer.FindState(0, "exp_avg_scale")->shape, (Shape{2, 1}));
}

TEST(OptimizerState, DefaultsAreThoseOfTorch) {
  EXPECT_EQ(AdamWOptions{}.weight_decay, 1e-2);
  EXPECT_EQ(AdamOptions{}.weight_decay, 0.0);
  EXPECT_EQ(LionOptions{}.beta2, 0.99);
  EXPECT_EQ(AdamWOptions{}.beta2, 0.999);
  EXPECT_EQ(SgdOptions{}.lr, 1e-3);
}

// Memory of the caller, with one tensor left to the library: the same bits, and a second optimizer
// goes on with what the first left there.
TEST(OptimizerMemory, OfTheCallerGivesTheSameBitsAndCanBeTakenUpAgain) {
  Model ours;
  Model theirs;
  AdamWOptions options;
  options.storage.stochastic_rounding = true;
  Optimizer reference(options, ours.parameters);
  ours.SetGradients(reference);

  const std::vector<ParameterGroup> groups = {{options, theirs.parameters}};
  std::vector<std::vector<std::int64_t>> storage;
  StateMemory memory;
  for (const StateEntry& tensor : StateLayout(groups)) {
    storage.emplace_back(tensor.bytes / 8 + 1, -1);
    memory.addresses.push_back(storage.back().data());
  }
  {
    Optimizer first(groups, memory);
    theirs.SetGradients(first);
    for (int step = 0; step < 5; ++step) {
      reference.Step();
      first.Step();
    }
    EXPECT_EQ(first.state()[3].data, storage[3].data());
  }
  memory.holds_state = true;
  Optimizer second(groups, memory);
  EXPECT_EQ(second.StepCount(0), 5U);
  theirs.SetGradients(second);
  for (int step = 0; step < 5; ++step) {
    reference.Step();
    second.Step();
  }
  EXPECT_EQ(ours.weights, theirs.weights);
  for (std::size_t i = 0; i < second.state().size(); ++i) {
    const StateEntry& tensor = second.state()[i];
    EXPECT_EQ(std::memcmp(tensor.data, reference.state()[i].data, tensor.bytes), 0) << tensor.name;
  }

  // What the library allocates is fresh even so.
  memory.addresses[3] = nullptr;
  const Optimizer third(groups, memory);
  EXPECT_EQ(third.StepCount(0), 10U);
  EXPECT_EQ(*static_cast<std::int8_t*>(third.state()[3].data), 0);
}

TEST(OptimizerMemory, ReportCountsWhatTheTensorsHave) {
  Model model;
  Optimizer optimizer(AdamWOptions{}, model.parameters);
  MemoryUse use = optimizer.Memory();
  EXPECT_EQ(use.weights, 2 * 568U);
  EXPECT_EQ(use.gradients, 0U);
  EXPECT_EQ(use.weight_correction, 568U);
  EXPECT_EQ(use.first_moment, 560U + 32U);
  EXPECT_EQ(use.second_moment, 560U + 32U);
  EXPECT_EQ(use.maximum, 0U);
  EXPECT_EQ(use.scales, 2 * 64U);
  EXPECT_EQ(use.other, 2 * 12U);
  model.SetGradients(optimizer);
  use = optimizer.Memory();
  EXPECT_EQ(use.gradients, 4 * 568U);
  EXPECT_EQ(use.Total(), use.weights + use.gradients + use.Optimizer());
  EXPECT_EQ(optimizer.Memory(1).second_moment, 32U);
}

TEST(OptimizerStep, OnlyParametersWithAGradientMove) {
  Model model;
  const auto before = model.weights;
  Optimizer optimizer(AdamWOptions{.lr = 0.1}, model.parameters);
  optimizer.SetGradient("bias", model.gradients[1].data(), DType::kFloat32);
  optimizer.Step();
  EXPECT_EQ(model.weights[0], before[0]);
  EXPECT_NE(model.weights[1], before[1]);
  EXPECT_EQ(optimizer.StepCount(0), 0U);
  EXPECT_EQ(optimizer.StepCount(1), 1U);
  optimizer.ClearGradient(1);
  optimizer.Step();
  EXPECT_EQ(optimizer.StepCount(1), 1U);
}

TEST(OptimizerStep, AParameterWithoutElementsCounts) {
  Optimizer optimizer(LionOptions{}, {{"none", nullptr, DType::kBFloat16, {0, 3}}});
  optimizer.Step();
  EXPECT_EQ(optimizer.StepCount(0), 0U);
  optimizer.SetGradient(0, nullptr, DType::kBFloat16);
  optimizer.Step();
  EXPECT_EQ(optimizer.StepCount(0), 1U);
}

TEST(OptimizerStep, ASkippedGradientStaysSet) {
  Model model;
  Optimizer optimizer(AdamWOptions{.storage = {.nonfinite = Nonfinite::kSkip}}, model.parameters);
  model.SetGradients(optimizer);
  model.gradients[0][3] = std::numeric_limits<float>::quiet_NaN();
  EXPECT_EQ(optimizer.Step(), 1U);
  EXPECT_EQ(optimizer.StepCount(0), 0U);
  model.gradients[0][3] = 0.0F;
  EXPECT_EQ(optimizer.Step(), 0U);
  EXPECT_EQ(optimizer.StepCount(0), 1U);
  EXPECT_EQ(optimizer.StepCount(1), 2U);
}

TEST(OptimizerStep, AMovedOptimizerGoesOn) {
  Model model;
  Optimizer first(AdamWOptions{}, model.parameters);
  model.SetGradients(first);
  Optimizer second(std::move(first));
  second.Step();
  Model other;
  first = Optimizer(AdamWOptions{}, other.parameters);
  other.SetGradients(first);
  first.Step();
  EXPECT_EQ(model.weights, other.weights);
}

TEST(OptimizerStep, DifferentOptimizersRunAtOnce) {
  constexpr std::size_t kThreads = 4;
  std::vector<std::unique_ptr<Model>> models;
  std::vector<std::thread> threads;
  for (std::size_t i = 0; i < kThreads; ++i) {
    models.push_back(std::make_unique<Model>(
        std::vector<std::pair<std::string, Shape>>{{"w", {300, 256}}, {"b", {300}}}));
    threads.emplace_back([&model = *models.back()] {
      Optimizer optimizer(AdamWOptions{}, model.parameters);
      model.SetGradients(optimizer);
      for (int step = 0; step < 20; ++step) optimizer.Step();
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const auto& model : models) EXPECT_EQ(model->weights, models.front()->weights);
}

TEST(OptimizerOptions, GroupsHaveTheirOwnAndTheLearningRateCanChange) {
  Model model;
  std::vector<ParameterGroup> groups = {{AdamWOptions{.lr = 0.1}, {model.parameters[0]}},
                                        {AdamWOptions{.lr = 0.0}, {model.parameters[1]}}};
  const auto before = model.weights;
  Optimizer optimizer(std::move(groups));
  EXPECT_EQ(optimizer.groups(), 2U);
  EXPECT_EQ(optimizer.GroupOf(1), 1U);
  model.SetGradients(optimizer);
  optimizer.Step();
  EXPECT_NE(model.weights[0], before[0]);
  EXPECT_EQ(model.weights[1], before[1]);
  optimizer.SetLr(1, 0.1);
  EXPECT_EQ(optimizer.lr(1), 0.1);
  optimizer.Step();
  EXPECT_NE(model.weights[1], before[1]);
}

TEST(OptimizerOptions, TheFirstLearningRateIsTheInitialOne) {
  Model model;
  Optimizer optimizer(AdamWOptions{.lr = 0.1, .decouple_lr = true}, model.parameters);
  optimizer.SetLr(0, 0.01);
  EXPECT_EQ(std::get<AdamWOptions>(optimizer.options(0)).initial_lr, 0.1);
  AdamWOptions changed;
  changed.decouple_lr = true;
  optimizer.SetOptions(0, changed);
  EXPECT_EQ(std::get<AdamWOptions>(optimizer.options(0)).initial_lr, 0.1);
}

TEST(OptimizerMaster, WritingAndReadingIsExactWith32Bits) {
  Model model;
  Optimizer optimizer(AdamWOptions{.storage = {.master_weight_bits = 32}}, model.parameters);
  std::vector<float> master(560);
  for (std::size_t i = 0; i < master.size(); ++i) {
    master[i] = std::sin(static_cast<float>(i));
  }
  optimizer.WriteMasterWeights(0, master);
  std::vector<float> read(560, 0.0F);
  optimizer.ReadMasterWeights(0, read);
  EXPECT_EQ(read, master);
}

TEST(OptimizerMaster, AnFp32WeightIsItsOwn) {
  std::vector<float> weight = {1.0F, 2.0F};
  Optimizer optimizer(SgdOptions{}, {{"w", weight.data(), DType::kFloat32, {2}}});
  optimizer.WriteMasterWeights(0, std::array{3.0F, 4.0F});
  EXPECT_EQ(weight, (std::vector<float>{3.0F, 4.0F}));
  std::vector<float> read(2);
  optimizer.ReadMasterWeights(0, read);
  EXPECT_EQ(read, weight);
}

TEST(OptimizerState, MetadataNamesFormatAndRule) {
  Model model;
  const Optimizer optimizer(LionOptions{}, model.parameters);
  const auto pairs = optimizer.Metadata();
  const std::map<std::string, std::string> metadata(pairs.begin(), pairs.end());
  EXPECT_EQ(metadata.at("flashoptim_format"), "1");
  EXPECT_EQ(metadata.at("optimizer"), "Lion");
}

}  // namespace
}  // namespace flashoptim

// Optimizer state in files: names and sizes, options, and values that have no meaning.
#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <limits>
#include <map>
#include <string>
#include <vector>

#include "flashoptim/convert.h"
#include "flashoptim/plan.h"
#include "flashoptim/state_file.h"
#include "temporary_folder.h"

namespace flashoptim {
namespace {

StateDescription OneGroup(Rule rule, const std::vector<std::string>& parameters) {
  StateDescription description;
  description.rule = rule;
  description.groups.resize(1);
  StateGroup& group = description.groups[0];
  group.parameters = parameters;
  group.hyperparameters.momentum = rule == Rule::kSgd ? 0.9 : 0.0;
  group.hyperparameters.seed = UINT64_MAX;
  group.hyperparameters.weight_decay_kind = WeightDecay::kDecoupled;
  return description;
}

// A parameter with fresh state, stepped once by the library itself.
class Stepped {
 public:
  Stepped(Rule rule, DType weight, std::vector<std::uint64_t> shape, KeptState kept = {})
      : description(OneGroup(rule, {"layer.weight"})) {
    description.groups[0].kept = kept;
    const FileDType dtype = weight == DType::kFloat32 ? FileDType::kF32 : FileDType::kBF16;
    Add("layer.weight", dtype, shape, 0);
    for (const StateTensor& tensor : StateTensorsOf(rule, kept, weight, shape)) {
      Add("layer.weight." + tensor.name, tensor.dtype, tensor.shape, 0);
    }
    Step(rule, weight, shape, kept);
  }

  std::vector<std::byte>& data(const std::string& name) { return data_.at(name); }
  void Rename(const std::string& from, const std::string& to) {
    for (FileTensor& tensor : tensors) {
      if (tensor.name == from) tensor.name = to;
    }
  }

  CheckpointFile Write(const std::string& path) {
    WriteOptions options;
    options.metadata[kOptionsKey] = OptionsToText(description);
    WriteCheckpoint(path, tensors, options);
    return CheckpointFile::Open(path);
  }

  StateDescription description;
  std::vector<FileTensor> tensors;

 private:
  void Add(const std::string& name, FileDType dtype, std::vector<std::uint64_t> shape, int fill) {
    FileTensor tensor{name, dtype, std::move(shape), {}};
    auto& bytes = data_[name];
    bytes.assign(tensor.elements() * BytesOf(dtype), static_cast<std::byte>(fill));
    tensor.data = bytes;
    tensors.push_back(tensor);
  }

  void Step(Rule rule, DType weight, const std::vector<std::uint64_t>& shape,
            const KeptState& kept) {
    std::vector<std::int64_t> sizes(shape.begin(), shape.end());
    std::vector<std::int64_t> strides(shape.size(), 1);
    for (std::size_t d = shape.size(); d-- > 1;) strides[d - 1] = strides[d] * sizes[d];
    const Geometry geometry = GeometryOf(sizes, strides);
    TensorBinding binding;
    const auto at = [&](const char* name) -> void* {
      const auto found = data_.find(std::string("layer.weight") + name);
      return found == data_.end() ? nullptr : found->second.data();
    };
    binding.name = "layer.weight";
    binding.weight = at("");
    binding.weight_dtype = weight;
    binding.correction = at(".weight_correction");
    binding.correction_bits = binding.correction == nullptr ? 0 : kept.master_weight_bits - 16;
    binding.codec = EffectiveCodec(kept.codec, shape.size(), geometry);
    binding.rows = geometry.rows;
    binding.row_length = geometry.row_length;
    binding.step = static_cast<float*>(at(".step"));
    binding.first_moment = at(rule == Rule::kSgd ? ".momentum_buffer" : ".exp_avg");
    binding.first_moment_scale =
        static_cast<float*>(at(rule == Rule::kSgd ? ".momentum_buffer_scale" : ".exp_avg_scale"));
    binding.second_moment = at(".exp_avg_sq");
    binding.second_moment_scale = static_cast<float*>(at(".exp_avg_sq_scale"));
    binding.maximum = at(".max_exp_avg_sq");
    binding.maximum_scale = static_cast<float*>(at(".max_exp_avg_sq_scale"));
    // Fresh state is the encoding of zeros.
    const std::vector<float> zeros(geometry.rows * geometry.row_length, 0.0F);
    const auto fresh = [&](Moment kind, void* codes, float* scale) {
      if (codes != nullptr)
        EncodeMoments(kind, binding.codec, geometry, zeros.data(), codes, scale);
    };
    fresh(Moment::kFirst, binding.first_moment, binding.first_moment_scale);
    fresh(Moment::kSecond, binding.second_moment, binding.second_moment_scale);
    fresh(Moment::kSecond, binding.maximum, binding.maximum_scale);
    Plan plan(rule, {binding}, 1);
    plan.SetHyperparameters(0, description.groups[0].hyperparameters);
    std::vector<float> gradient(zeros.size());
    for (std::size_t i = 0; i < gradient.size(); ++i) {
      gradient[i] = static_cast<float>(i % 13) - 6.0F;
    }
    plan.SetGradient(0, {gradient.data(), DType::kFloat32});
    plan.Step();
  }

  std::map<std::string, std::vector<std::byte>> data_;
};

std::string MessageOf(const std::function<void()>& call) {
  try {
    call();
  } catch (const FileError& error) {
    return error.what();
  }
  return "nothing was refused";
}

void CheckAll(const CheckpointFile& file) {
  const auto state = ReadOptimizerState(file);
  ASSERT_TRUE(state.has_value());
  for (const ParameterState& parameter : state->parameters) {
    CheckWeights(parameter);
    for (const MomentTensors& moment : parameter.moments) CheckMoment(parameter, moment);
  }
}

TEST(StateFile, StatesOfAllRulesAreReadAndDecoded) {
  for (const Rule rule : {Rule::kSgd, Rule::kAdam, Rule::kLion}) {
    for (const DType dtype : {DType::kBFloat16, DType::kFloat32}) {
      for (const Codec codec : {Codec::kNone, Codec::kRoot, Codec::kSoftsign}) {
        const testing::TemporaryFolder folder;
        KeptState kept;
        kept.codec = codec;
        kept.amsgrad = rule == Rule::kAdam;
        Stepped stepped(rule, dtype, {5, 70}, kept);
        CheckAll(stepped.Write(folder / "x.safetensors"));
      }
    }
  }
}

TEST(StateFile, StatisticsCountWhatIsThere) {
  const testing::TemporaryFolder folder;
  Stepped stepped(Rule::kAdam, DType::kBFloat16, {2, 70});
  const CheckpointFile file = stepped.Write(folder / "x.safetensors");
  const auto state = ReadOptimizerState(file);
  const ParameterState& parameter = state->parameters.at(0);
  const MomentStatistics first = CheckMoment(parameter, parameter.moments.at(0));
  EXPECT_EQ(first.elements, 140U);
  EXPECT_EQ(first.groups, 4U);
  EXPECT_EQ(first.nonfinite, 0U);
  EXPECT_EQ(first.zeros, 11U);  // i % 13 == 6
  EXPECT_NEAR(first.largest_scale, 0.6F, 1e-6F);
  EXPECT_EQ(CheckWeights(parameter), 0U);
}

TEST(StateFile, BytesAreThoseOfTheReadme) {
  const auto bytes = [](const KeptState& kept, DType weight) {
    double sum = 0;
    const std::vector<std::uint64_t> shape{1024, 1024};
    for (const auto& tensor : StateTensorsOf(Rule::kAdam, kept, weight, shape)) {
      sum += static_cast<double>(tensor.bytes());
    }
    return sum / (1024 * 1024);
  };
  EXPECT_NEAR(bytes({}, DType::kBFloat16), 3.125, 1e-4);
  EXPECT_NEAR(bytes({.codec = Codec::kNone, .master_weight_bits = 32}, DType::kBFloat16), 10, 1e-4);
  EXPECT_NEAR(bytes({}, DType::kFloat32), 2.125, 1e-4);
}

TEST(StateFile, AnotherMemoryOrderIsReadInThatOrder) {
  const testing::TemporaryFolder folder;
  const std::vector<std::uint64_t> shape{2, 3, 4, 5};
  const std::vector<std::uint32_t> order{0, 2, 3, 1};
  StateDescription description = OneGroup(Rule::kLion, {"w"});
  description.memory_order["w"] = order;
  std::vector<std::vector<std::byte>> data;
  std::vector<FileTensor> tensors;
  for (const auto& expected :
       StateTensorsOf(Rule::kLion, description.groups[0].kept, DType::kFloat32, shape, order)) {
    data.emplace_back(expected.bytes());
    tensors.push_back({"w." + expected.name, expected.dtype, expected.shape, {}});
    if (expected.name == "exp_avg") {
      for (std::size_t i = 0; i < data.back().size(); ++i) data.back()[i] = std::byte(i);
    }
    if (expected.name == "exp_avg_scale") {
      EXPECT_EQ(expected.shape, (std::vector<std::uint64_t>{2, 1}));
      const float ones[2] = {1.0F, 1.0F};
      std::memcpy(data.back().data(), ones, sizeof ones);
    }
  }
  for (std::size_t i = 0; i < data.size(); ++i) tensors[i].data = data[i];
  WriteOptions options;
  options.metadata[kOptionsKey] = OptionsToText(description);
  WriteCheckpoint(folder / "x.safetensors", tensors, options);
  const CheckpointFile file = CheckpointFile::Open(folder / "x.safetensors");
  const auto state = ReadOptimizerState(file);
  std::vector<std::byte> storage;
  const auto codes = InMemoryOrder(*file.Find("w.exp_avg"), state->parameters.at(0), storage);
  // Behind element [0, 0, 0, 0] in memory comes [0, 1, 0, 0].
  EXPECT_EQ(codes[1], std::byte{20});
  EXPECT_EQ(codes[3], std::byte{1});
  CheckAll(file);
}

struct Damage {
  const char* name;
  std::function<void(Stepped&)> apply;
  const char* says;
};

template <class T>
std::function<void(Stepped&)> Set(const char* tensor, T value) {
  return [=](Stepped& s) { std::memcpy(s.data(tensor).data(), &value, sizeof value); };
}

std::vector<Damage> Damages() {
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  return {
      {"step_fraction", Set("layer.weight.step", 1.5F),
       "'layer.weight.step': the step count is 1.5"},
      {"step_nan", Set("layer.weight.step", kNan), "'layer.weight.step'"},
      {"scale_nan", Set("layer.weight.exp_avg_scale", kNan), "'layer.weight.exp_avg': the scale"},
      {"scale_negative", Set("layer.weight.exp_avg_scale", -1.0F),
       "'layer.weight.exp_avg': the scale"},
      {"scale_zero", Set("layer.weight.exp_avg_sq_scale", 0.0F),
       "'layer.weight.exp_avg_sq': the scale"},
      {"code_without_flag", Set("layer.weight.exp_avg", std::int8_t{-128}), "no flag"},
      {"flag_without_code", Set("layer.weight.exp_avg_scale", 0x1.000002p0F), "no such element"},
      {"code_0_of_v", Set("layer.weight.exp_avg_sq", std::uint8_t{0}),
       "'layer.weight.exp_avg_sq': group 0"},
      {"missing", [](Stepped& s) { s.tensors.erase(s.tensors.begin() + 1); },
       "'layer.weight.step': it is missing"},
      {"superfluous", [](Stepped& s) { s.description.groups[0].kept.master_weight_bits = 16; },
       "'layer.weight.weight_correction' is named like optimizer state"},
      {"wrong_dtype", [](Stepped& s) { s.description.groups[0].kept.master_weight_bits = 32; },
       "'layer.weight.weight_correction': it is I8 [5, 70], and the options ask for I16"},
      {"wrong_codec", [](Stepped& s) { s.description.groups[0].kept.codec = Codec::kNone; },
       "'layer.weight.exp_avg': it is I8"},
      {"wrong_rule", [](Stepped& s) { s.description.rule = Rule::kSgd; }, "exp_avg"},
      {"lr_negative", [](Stepped& s) { s.description.groups[0].hyperparameters.lr = -1; },
       "lr must be"},
      {"other_parameter", [](Stepped& s) { s.description.groups[0].parameters = {"layer.weigh"}; },
       "'layer.weigh.step'"},
      {"weight_of_integers", [](Stepped& s) { s.tensors[0].dtype = FileDType::kI16; },
       "'layer.weight': a weight cannot be I16"},
      {"shape_turned",
       [](Stepped& s) {
         s.tensors[0].shape = {70, 5};
       },
       "it is I8 [5, 70], and the options ask for I8 [70, 5]"},
      {"order_short", [](Stepped& s) { s.description.memory_order["layer.weight"] = {0}; },
       "its memory_order has 1 dimensions"},
  };
}

class Damaged : public ::testing::TestWithParam<Damage> {};

TEST_P(Damaged, IsRefusedByName) {
  const testing::TemporaryFolder folder;
  Stepped stepped(Rule::kAdam, DType::kBFloat16, {5, 70});
  GetParam().apply(stepped);
  const CheckpointFile file = stepped.Write(folder / "x.safetensors");
  const std::string message = MessageOf([&] { CheckAll(file); });
  EXPECT_NE(message.find(GetParam().says), std::string::npos) << message;
}

INSTANTIATE_TEST_SUITE_P(All, Damaged, ::testing::ValuesIn(Damages()),
                         [](const auto& each) { return std::string(each.param.name); });

TEST(Options, AreReadAsTheyWereWritten) {
  StateDescription written = OneGroup(Rule::kAdam, {"a", "b"});
  written.groups[0].hyperparameters.lr = 0.1;
  written.groups[0].hyperparameters.nonfinite = Nonfinite::kSkip;
  written.groups[0].kept.codec = Codec::kSoftsign;
  written.memory_order["b"] = {1, 0};
  const std::string text = OptionsToText(written);
  const StateDescription read = OptionsFromText(text);
  EXPECT_EQ(OptionsToText(read), text);
  EXPECT_EQ(read.groups[0].hyperparameters.lr, 0.1);
  EXPECT_EQ(read.groups[0].hyperparameters.seed, UINT64_MAX);
  EXPECT_EQ(read.groups[0].parameters, (std::vector<std::string>{"a", "b"}));
}

struct Edit {
  const char* name;
  const char* from;
  const char* to;
  const char* says;
};

class BadOptions : public ::testing::TestWithParam<Edit> {};

TEST_P(BadOptions, AreRefusedByName) {
  std::string text = OptionsToText(OneGroup(Rule::kAdam, {"a", "b"}));
  const std::size_t at = text.find(GetParam().from);
  ASSERT_NE(at, std::string::npos) << text;
  text.replace(at, std::strlen(GetParam().from), GetParam().to);
  const std::string message = MessageOf([&] { OptionsFromText(text); });
  EXPECT_NE(message.find(GetParam().says), std::string::npos) << message;
}

INSTANTIATE_TEST_SUITE_P(
    All, BadOptions,
    ::testing::Values(
        Edit{"rule", "\"adam\"", "\"adamax\"", "rule must be one of sgd, adam, lion"},
        Edit{"missing", "\"eps\"", "\"epsilon\"", "parameter group 0 lacks 'eps'"},
        Edit{"unknown", "{\"amsgrad\"", "{\"x\":1,\"amsgrad\"", "the unknown entry 'x'"},
        Edit{"text", "\"lr\":0.001", "\"lr\":\"a\"", "lr must be a number"},
        Edit{"null", "\"lr\":0.001", "\"lr\":null", "lr must be a number"},
        Edit{"betas", "[0.9,0.999]", "[0.9]", "betas must be two numbers"},
        Edit{"bits", "\"master_weight_bits\":24", "\"master_weight_bits\":20", "16, 24 or 32"},
        Edit{"seed", "18446744073709551615", "18446744073709551616", "seed must be"},
        Edit{"switch_", "\"maximize\":false", "\"maximize\":0", "true or false"},
        Edit{"twice", "[\"a\",\"b\"]", "[\"a\",\"a\"]", "parameter 'a' is in two groups"},
        Edit{"names", "[\"a\",\"b\"]", "[1]", "parameters must be names"},
        Edit{"order_of_none", "\"memory_order\":{}", "\"memory_order\":{\"c\":[0]}",
             "'c', which is in no group"},
        Edit{"order", "\"memory_order\":{}", "\"memory_order\":{\"a\":[1,1]}",
             "parameter 'a': its memory_order"},
        Edit{"deep", "[\"a\",\"b\"]", "[[[[]]]]", "nested more than"},
        Edit{"duplicate", "{\"groups\"", "{\"rule\":1,\"groups\"", "the name 'rule' twice"}),
    [](const auto& each) { return std::string(each.param.name); });

}  // namespace
}  // namespace flashoptim

// Saving and loading an optimizer: training goes on with the same bits, and what does not fit is
// refused before anything is written.
#include "flashoptim/optimizer_file.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "temporary_folder.h"

namespace flashoptim {
namespace {

using testing::TemporaryFolder;

// A bf16 matrix, a channels-last kernel and an fp32 vector.
struct Model {
  Model() {
    for (std::size_t i = 0; i < matrix.size(); ++i) {
      matrix[i] = static_cast<std::uint16_t>(0x3f00U + i % 200U);
    }
    for (std::size_t i = 0; i < kernel.size(); ++i) {
      kernel[i] = static_cast<std::uint16_t>(0xbe00U + i % 77U);
    }
  }
  Model(const Model&) = delete;
  Model& operator=(const Model&) = delete;

  std::vector<Parameter> Parameters() {
    return {{"matrix", matrix.data(), DType::kBFloat16, {6, 70}},
            {"kernel", kernel.data(), DType::kBFloat16, {4, 3, 5, 2}, {30, 1, 6, 3}},
            {"bias", bias.data(), DType::kFloat32, {6}}};
  }

  std::vector<std::uint16_t> matrix = std::vector<std::uint16_t>(420);
  std::vector<std::uint16_t> kernel = std::vector<std::uint16_t>(120);
  std::vector<float> bias = std::vector<float>(6, 0.25F);
};

void Train(Optimizer& optimizer, int first, int last) {
  for (int step = first; step < last; ++step) {
    std::vector<float> gradient(420);
    for (std::size_t i = 0; i < gradient.size(); ++i) {
      gradient[i] =
          1e-2F * static_cast<float>((i * 31U + static_cast<unsigned>(step) * 7U) % 19U) - 0.08F;
    }
    for (std::size_t i = 0; i < optimizer.size(); ++i) {
      optimizer.SetGradient(i, gradient.data(), DType::kFloat32);
    }
    optimizer.Step();
  }
}

template <class Call>
std::string ErrorOf(const Call& call) {
  try {
    call();
  } catch (const FileError& error) {
    return error.what();
  }
  return "";
}

TEST(OptimizerFile, TrainingGoesOnWithTheSameBits) {
  const TemporaryFolder folder;
  AdamWOptions adamw;
  adamw.amsgrad = true;
  adamw.storage.stochastic_rounding = true;
  AdamWOptions wide;
  wide.storage.master_weight_bits = 32;
  wide.storage.codec = Codec::kSoftsign;
  for (const Options& options : {Options(adamw), Options(wide), Options(LionOptions{}),
                                 Options(SgdOptions{}), Options(SgdwOptions{.momentum = 0.9}),
                                 Options(AdamOptions{.storage = {.quantize = false}})}) {
    SCOPED_TRACE(NameOf(options));
    const std::string path = folder / "state.safetensors";
    Model straight;
    Optimizer reference(options, straight.Parameters());
    Train(reference, 0, 10);

    Model first;
    {
      Optimizer optimizer(options, first.Parameters());
      Train(optimizer, 0, 5);
      SaveOptimizer(optimizer, path);
    }
    Model second;
    Optimizer resumed(options, second.Parameters());
    LoadOptimizer(resumed, path);
    EXPECT_EQ(second.kernel, first.kernel);
    EXPECT_EQ(resumed.StepCount(1), 5U);
    Train(resumed, 5, 10);
    EXPECT_EQ(second.matrix, straight.matrix);
    EXPECT_EQ(second.kernel, straight.kernel);
    EXPECT_EQ(second.bias, straight.bias);
  }
}

TEST(OptimizerFile, AFileThatDoesNotFitChangesNothing) {
  const TemporaryFolder folder;
  const std::string path = folder / "state.safetensors";
  Model saved;
  Optimizer source(AdamWOptions{}, saved.Parameters());
  Train(source, 0, 3);
  SaveOptimizer(source, path);

  struct Row {
    Options options;
    std::function<void(std::vector<Parameter>&)> change;
    std::string message;
  };
  const auto as_it_is = [](std::vector<Parameter>&) {};
  const std::vector<Row> rows = {
      {LionOptions{}, as_it_is, "of another rule than Lion"},
      {AdamWOptions{.amsgrad = true}, as_it_is, "other state tensors"},
      {AdamWOptions{.storage = {.master_weight_bits = 32}}, as_it_is, "in another form"},
      {AdamWOptions{.storage = {.codec = Codec::kSoftsign}}, as_it_is, "another codec"},
      {AdamWOptions{}, [](auto& p) { p.pop_back(); }, "it has 3 parameters, and the optimizer 2"},
      {AdamWOptions{}, [](auto& p) { p[2].name = "other"; }, "no parameter of this name"},
      {AdamWOptions{},
       [](auto& p) {
         p[0].shape = {70, 6};
       },
       "tensor 'matrix': its shape"},
      {AdamWOptions{}, [](auto& p) { p[0].dtype = DType::kFloat16; }, "its dtype is BF16"},
      {AdamWOptions{}, [](auto& p) { p[1].strides.clear(); }, "tensor 'kernel': its dimensions"},
  };
  for (const Row& row : rows) {
    SCOPED_TRACE(row.message);
    Model model;
    const Model before;
    std::vector<Parameter> parameters = model.Parameters();
    row.change(parameters);
    Optimizer optimizer(row.options, parameters);
    const std::string error = ErrorOf([&] { LoadOptimizer(optimizer, path); });
    EXPECT_NE(error.find(row.message), std::string::npos) << error;
    EXPECT_EQ(model.matrix, before.matrix);
    EXPECT_EQ(optimizer.StepCount(0), 0U);
  }
}

TEST(OptimizerFile, ADamagedFileChangesNothing) {
  const TemporaryFolder folder;
  const std::string path = folder / "state.safetensors";
  Model saved;
  Optimizer source(AdamWOptions{}, saved.Parameters());
  Train(source, 0, 3);
  SaveOptimizer(source, path);
  std::filesystem::resize_file(path, std::filesystem::file_size(path) - 1);
  Model model;
  Optimizer optimizer(AdamWOptions{}, model.Parameters());
  EXPECT_NE(ErrorOf([&] { LoadOptimizer(optimizer, path); }), "");
  EXPECT_EQ(optimizer.StepCount(0), 0U);
}

// Its checksums are right: it was saved so.
TEST(OptimizerFile, AValueWithoutMeaningIsRefusedWithTheNameOfTheFile) {
  const TemporaryFolder folder;
  const std::string path = folder / "state.safetensors";
  Model model;
  Optimizer optimizer(AdamWOptions{}, model.Parameters());
  const StateEntry& scale = *optimizer.FindState(0, "exp_avg_scale");
  const std::vector<float> negative(scale.bytes / sizeof(float), -1.0F);
  optimizer.WriteState(scale, negative.data());
  SaveOptimizer(optimizer, path);
  const std::string error = ErrorOf([&] { LoadOptimizer(optimizer, path); });
  EXPECT_TRUE(error.starts_with(path + ": tensor 'matrix.exp_avg': the scale")) << error;
}

TEST(OptimizerFile, EveryStreamKeyThatCanBeWrittenIsReadAgain) {
  const TemporaryFolder folder;
  const std::string path = folder / "state.safetensors";
  Model model;
  Optimizer optimizer(AdamWOptions{}, model.Parameters());
  for (const std::int64_t key : {INT64_MIN, std::int64_t{-1}, INT64_MAX}) {
    optimizer.WriteState(*optimizer.FindState(0, "stream_key"), &key);
    SaveOptimizer(optimizer, path);
    Optimizer loaded(AdamWOptions{}, model.Parameters());
    LoadOptimizer(loaded, path);
    std::int64_t read = 0;
    loaded.ReadState(*loaded.FindState(0, "stream_key"), &read);
    EXPECT_EQ(read, key);
  }
}

// Saves an optimizer of two groups, and returns the file's options.
std::vector<Options> SaveAndRead(const std::string& path, const Options& first,
                                 const Options& second) {
  Model model;
  std::vector<Parameter> parameters = model.Parameters();
  const Parameter bias = parameters.back();
  parameters.pop_back();
  Optimizer optimizer({{first, parameters}, {second, {bias}}});
  optimizer.SetLr(1, 0.5);
  SaveOptimizer(optimizer, path);
  return SavedOptions(path);
}

TEST(OptimizerFile, HoldsTheOptionsOfAllRules) {
  const TemporaryFolder folder;
  const std::string path = folder / "state.safetensors";
  const StorageOptions storage{.codec = Codec::kSoftsign,
                               .master_weight_bits = 32,
                               .stochastic_rounding = true,
                               .nonfinite = Nonfinite::kSkip,
                               .seed = UINT64_MAX};
  const std::vector<Options> all = {
      SgdOptions{.lr = 0.1, .momentum = 0.9, .weight_decay = 0.2, .nesterov = true},
      SgdwOptions{.momentum = 0.8, .dampening = 0.1, .decouple_lr = true, .initial_lr = 3.0},
      AdamOptions{.beta1 = 0.8, .beta2 = 0.95, .eps = 1e-6, .amsgrad = true, .maximize = true},
      AdamWOptions{.lr = 1.0 / 3.0, .weight_decay = 0.3, .initial_lr = 2.0, .storage = storage},
      LionOptions{.beta2 = 0.98, .decouple_lr = true, .initial_lr = 1.0, .storage = storage}};
  for (const Options& options : all) {
    SCOPED_TRACE(NameOf(options));
    Options second = options;
    std::visit([](auto& chosen) { chosen.storage.quantize = false; }, second);
    const std::vector<Options> read = SaveAndRead(path, options, second);
    ASSERT_EQ(read.size(), 2U);
    Model model;
    std::vector<Parameter> parameters = model.Parameters();
    const Parameter bias = parameters.back();
    parameters.pop_back();
    // An optimizer that is made with them keeps the same state, and says the same of itself.
    Optimizer made({{read[0], parameters}, {read[1], {bias}}});
    LoadOptimizer(made, path);
    SaveOptimizer(made, folder / "again.safetensors");
    EXPECT_EQ(testing::ReadAll(folder / "again.safetensors"), testing::ReadAll(path));

    Optimizer other({{options, parameters}, {second, {bias}}});
    LoadOptions(other, path);
    EXPECT_EQ(other.lr(1), 0.5);
    EXPECT_EQ(other.lr(0), made.lr(0));
  }
}

TEST(OptimizerFile, OptionsThatDoNotFitChangeNothing) {
  const TemporaryFolder folder;
  const std::string path = folder / "state.safetensors";
  SaveAndRead(path, AdamWOptions{.lr = 0.25}, AdamWOptions{.amsgrad = true});
  Model model;
  Optimizer one(AdamWOptions{}, model.Parameters());
  EXPECT_NE(ErrorOf([&] { LoadOptions(one, path); }).find("2 parameter groups"), std::string::npos);
  std::vector<Parameter> parameters = model.Parameters();
  const Parameter bias = parameters.back();
  parameters.pop_back();
  Optimizer two({{AdamWOptions{}, parameters}, {AdamWOptions{}, {bias}}});
  EXPECT_NE(ErrorOf([&] { LoadOptions(two, path); }).find("make a new optimizer"),
            std::string::npos);
  EXPECT_EQ(two.lr(0), 1e-3);
}

TEST(OptimizerFile, ShardsOfAFolderThatCannotBeListedAreNotWritten) {
  const TemporaryFolder folder;
  Model model;
  const Optimizer optimizer(AdamWOptions{}, model.Parameters());
  WriteOptions options;
  options.shard_bytes = 100;
  const std::string path = folder / "x.safetensors.index.json";
  constexpr uid_t kNobody = 65534;
  const bool root = ::geteuid() == 0;  // who may list every folder
  ASSERT_EQ(::chmod(folder.path().c_str(), 0333), 0);
  if (root) {
    ASSERT_EQ(::seteuid(kNobody), 0);
  }
  const std::string error = ErrorOf([&] { SaveOptimizer(optimizer, path, options); });
  if (root) {
    ASSERT_EQ(::seteuid(0), 0);
  }
  ASSERT_EQ(::chmod(folder.path().c_str(), 0700), 0);
  EXPECT_NE(error.find(path + ": its folder"), std::string::npos) << error;
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
}

}  // namespace
}  // namespace flashoptim

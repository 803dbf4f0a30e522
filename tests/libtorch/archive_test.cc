// What torch::save writes and torch::load takes.
#include <torch/optim/adamw.h>
#include <torch/serialize.h>

#include <sstream>
#include <string>
#include <vector>

#include "common.h"

namespace flashoptim {
namespace {

template <class Optimizer>
std::string Saved(const Optimizer& optimizer) {
  std::ostringstream archive;
  torch::save(optimizer, archive);
  return archive.str();
}

void Load(FlashOptimizer& optimizer, const std::string& archive) {
  std::istringstream stream(archive);
  torch::load(optimizer, stream);
}

template <class T>
class Archives : public testing::Test {};

template <class OptimizerType, class OptionsType>
struct Kind {
  using Optimizer = OptimizerType;
  using Options = OptionsType;
};
using Kinds = testing::Types<Kind<FlashSGD, FlashSGDOptions>, Kind<FlashSGDW, FlashSGDWOptions>,
                             Kind<FlashAdam, FlashAdamOptions>, Kind<FlashAdamW, FlashAdamWOptions>,
                             Kind<FlashLion, FlashLionOptions>>;
TYPED_TEST_SUITE(Archives, Kinds);

TYPED_TEST(Archives, ResumeToTheBit) {
  using Optimizer = typename TypeParam::Optimizer;
  using Options = typename TypeParam::Options;
  const std::vector<torch::Tensor> straight = Weights();
  const Options options = Options(0.25).weight_decay(0.125).maximize(true);
  Optimizer a(straight, options);
  for (int step = 0; step < 3; ++step) {
    SetGradients(straight, step);
    a.step();
  }
  const std::string archive = Saved(a);
  const std::vector<torch::Tensor> resumed = Copy(straight);
  Optimizer b(resumed);
  Load(b, archive);
  EXPECT_TRUE(dynamic_cast<const Options&>(b.param_groups()[0].options()) ==
              dynamic_cast<const Options&>(a.param_groups()[0].options()));
  ExpectSame(a, straight, b, resumed);
  for (int step = 3; step < 6; ++step) {
    SetGradients(straight, step);
    SetGradients(resumed, step);
    a.step();
    b.step();
  }
  ExpectSame(a, straight, b, resumed);
}

class Refusal : public testing::Test {
 protected:
  std::vector<torch::Tensor> weights = Weights();
  FlashAdamW optimizer = FlashAdamW(weights, FlashAdamWOptions(0.5));

  void SetUp() override {
    SetGradients(weights, 1);
    optimizer.step();
  }

  // Expects that an archive is refused for a reason and nothing is changed.
  void Expect(const std::string& archive, const std::string& why) {
    const std::vector<torch::Tensor> before = Copy(weights);
    FlashAdamW twin(before, FlashAdamWOptions(0.5));
    Load(twin, Saved(optimizer));
    ExpectError([&] { Load(optimizer, archive); }, why);
    EXPECT_EQ(optimizer.param_groups()[0].options().get_lr(), 0.5);
    ExpectSame(optimizer, weights, twin, before);
    SetGradients(weights, 2);
    optimizer.step();
  }
};

TEST_F(Refusal, OfAnArchiveOfAnotherOptimizer) {
  Expect(Saved(torch::optim::AdamW(Weights())), "not of an optimizer of flashoptim");
  Expect(Saved(FlashLion(Weights())), "it is of FlashLion, and this optimizer is FlashAdamW");
}

TEST_F(Refusal, OfOtherGroups) {
  Expect(Saved(FlashAdamW({Weight({4})})), "other numbers of parameters");
}

TEST_F(Refusal, OfAnotherFormOfState) {
  FlashAdamW softsign(weights, FlashAdamWOptions().storage({.codec = Codec::kSoftsign}));
  Expect(Saved(softsign), "codec or master_weight_bits differ");
}

TEST_F(Refusal, OfAnotherShape) {
  std::vector<torch::Tensor> others = Copy(weights);
  others[0] = Weight({96, 8});
  FlashAdamW other(others);
  SetGradients(others, 1);
  other.step();
  Expect(Saved(other), "parameter 0 of group 0: its state has 'weight_correction' as Char [96, 8]");
}

TEST_F(Refusal, OfAnotherFormat) {
  torch::serialize::OutputArchive archive;
  archive.write("flashoptim_format", c10::IValue(std::int64_t{kFormatVersion + 1}));
  std::ostringstream stream;
  archive.save_to(stream);
  Expect(stream.str(), "reads format " + std::to_string(kFormatVersion));
}

TEST_F(Refusal, OfADamagedStepCount) {
  StateOf(optimizer, weights[0]).tensor("step").fill_(0.5);
  const std::string damaged = Saved(optimizer);
  StateOf(optimizer, weights[0]).tensor("step").fill_(1.0);
  Expect(damaged, "the step count is 0.5");
}

}  // namespace
}  // namespace flashoptim

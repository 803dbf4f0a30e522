// The LibTorch adapter beside the Python package: options, groups, steps, errors. That steps give
// the package's bits is shown by test_parity.py.
#include <torch/optim/adamw.h>
#include <torch/optim/schedulers/step_lr.h>
#include <torch/utils.h>

#include <atomic>
#include <cstdlib>
#include <limits>
#include <memory>
#include <new>
#include <tuple>
#include <utility>
#include <vector>

#include "common.h"

namespace {

std::atomic<std::int64_t> allocations{0};

}  // namespace

[[gnu::noinline]] void* operator new(std::size_t size) {
  ++allocations;
  if (void* memory = std::malloc(size)) return memory;
  throw std::bad_alloc();
}
[[gnu::noinline]] void operator delete(void* memory) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }

namespace flashoptim {
namespace {

using torch::optim::OptimizerParamGroup;

TEST(Options, HaveTheDefaultsOfTheCppInterface) {
  EXPECT_EQ(FlashSGDOptions().native(), Options(SgdOptions{}));
  EXPECT_EQ(FlashSGDWOptions().native(), Options(SgdwOptions{}));
  EXPECT_EQ(FlashAdamOptions().native(), Options(AdamOptions{}));
  EXPECT_EQ(FlashAdamWOptions().native(), Options(AdamWOptions{}));
  EXPECT_EQ(FlashLionOptions().native(), Options(LionOptions{}));
}

TEST(Options, AreSetAsInLibTorch) {
  FlashAdamWOptions options = FlashAdamWOptions(0.5).weight_decay(0.25).betas({0.8, 0.9});
  options.storage().master_weight_bits = 32;
  EXPECT_EQ(options.native(), Options(AdamWOptions{.lr = 0.5,
                                                   .beta1 = 0.8,
                                                   .beta2 = 0.9,
                                                   .weight_decay = 0.25,
                                                   .storage = {.master_weight_bits = 32}}));
  options.set_lr(0.125);
  EXPECT_EQ(options.get_lr(), 0.125);
  EXPECT_EQ(options.lr(), 0.125);
  EXPECT_EQ(options.betas(), std::make_tuple(0.8, 0.9));
  EXPECT_FALSE(options == FlashAdamWOptions(0.125));
}

TEST(Groups, KeepTheirOwnOptions) {
  const torch::Tensor a = Weight({4}), b = Weight({4}), c = Weight({4});
  FlashSGD optimizer({OptimizerParamGroup({a}),
                      OptimizerParamGroup({b}, FlashSGDOptions(0.25).momentum(0.5).clone())},
                     FlashSGDOptions(0.125));
  optimizer.add_param_group(OptimizerParamGroup({c}, FlashSGDOptions(0.0625).clone()));
  const auto options = [&](std::size_t group) {
    return dynamic_cast<const FlashSGDOptions&>(optimizer.param_groups()[group].options());
  };
  EXPECT_EQ(options(0).lr(), 0.125);
  EXPECT_EQ(options(1).lr(), 0.25);
  EXPECT_EQ(options(1).momentum(), 0.5);
  EXPECT_EQ(options(2).lr(), 0.0625);
}

TEST(Groups, AddedBetweenStepsGoOnAsIfAlone) {
  const std::vector<torch::Tensor> first = {Weight({8, 96})}, second = {Weight({4, 64})};
  const std::vector<torch::Tensor> alone_first = Copy(first), alone_second = Copy(second);
  FlashAdamW together(first);
  FlashAdamW one(alone_first);
  // The place among all parameters is the key of the random stream.
  FlashAdamW two({OptimizerParamGroup({Weight({4})}),
                  OptimizerParamGroup(alone_second, FlashAdamWOptions(0.01).clone())});
  SetGradients(first, 1);
  SetGradients(alone_first, 1);
  together.step();
  one.step();
  together.add_param_group(OptimizerParamGroup(second, FlashAdamWOptions(0.01).clone()));
  for (int step = 2; step < 4; ++step) {
    for (const auto* parameters : {&first, &second, &alone_first, &alone_second}) {
      SetGradients(*parameters, step);
    }
    together.step();
    one.step();
    two.step();
  }
  ExpectSame(together, first, one, alone_first);
  ExpectSame(together, second, two, alone_second);
  EXPECT_EQ(StateOf(together, second[0]).tensor("stream_key").item<std::int64_t>(), 1);
}

TEST(Step, FollowsASchedule) {
  const std::vector<torch::Tensor> scheduled = Weights(), by_hand = Copy(scheduled);
  FlashLion a(scheduled, FlashLionOptions(0.5)), b(by_hand, FlashLionOptions(0.5));
  torch::optim::StepLR schedule(a, 1, 0.5);
  double lr = 0.5;
  for (int step = 0; step < 4; ++step) {
    SetGradients(scheduled, step);
    SetGradients(by_hand, step);
    b.param_groups()[0].options().set_lr(lr);
    a.step();
    b.step();
    schedule.step();
    lr = step == 0 ? lr : lr * 0.5;  // LibTorch's first call leaves it
  }
  EXPECT_EQ(a.param_groups()[0].options().get_lr(), 0.0625);
  ExpectSame(a, scheduled, b, by_hand);
}

TEST(Step, CallsTheClosureWithGradients) {
  const torch::Tensor weight = Weight({4});
  FlashSGD optimizer({weight}, FlashSGDOptions(0.5));
  const torch::NoGradGuard no_grad;
  const torch::Tensor loss = optimizer.step([&] {
    torch::Tensor sum = weight.to(torch::kFloat).sum();
    sum.backward();
    return sum;
  });
  EXPECT_TRUE(loss.defined());
  EXPECT_TRUE(weight.grad().defined());
  EXPECT_FALSE(optimizer.step().defined());
}

TEST(Step, LeavesParametersWithoutGradientAlone) {
  const std::vector<torch::Tensor> weights = {Weight({4, 64}), Weight({4, 64})};
  const std::vector<torch::Tensor> before = Copy(weights);
  FlashAdamW optimizer(weights);
  optimizer.step();
  EXPECT_TRUE(optimizer.state().empty());
  SetGradients({weights[1]}, 1);
  optimizer.step();
  EXPECT_EQ(optimizer.state().size(), 1U);
  EXPECT_TRUE(SameBits(weights[0], before[0]));
  EXPECT_FALSE(SameBits(weights[1], before[1]));
  EXPECT_EQ(StateOf(optimizer, weights[1]).tensor("stream_key").item<std::int64_t>(), 1);
}

TEST(Step, TellsAutogradThatWeightsChanged) {
  const torch::Tensor weight = Weight({4}, torch::kFloat);
  FlashSGD optimizer({weight});
  const torch::Tensor loss = (weight * weight).sum();
  SetGradients({weight}, 1);
  optimizer.step();
  EXPECT_THROW(loss.backward(), c10::Error);
}

TEST(Step, ReadsGradientsInAnotherMemoryOrder) {
  const std::vector<torch::Tensor> weights = {Weight({6, 70})}, twins = Copy(weights);
  FlashAdamW a(weights), b(twins);
  for (int step = 0; step < 3; ++step) {
    SetGradients(weights, step);
    SetGradients(twins, step);
    const torch::Tensor& twin = twins[0];
    twin.mutable_grad() = twin.grad().t().contiguous().t();
    ASSERT_FALSE(twin.grad().is_contiguous());
    a.step();
    b.step();
  }
  ExpectSame(a, weights, b, twins);
}

TEST(Step, AllocatesNothingOnceTheStateIsThere) {
  const std::vector<torch::Tensor> weights = Weights();
  FlashAdamW optimizer({OptimizerParamGroup({weights[0]}),
                        OptimizerParamGroup({weights[1], weights[2]},
                                            FlashAdamWOptions(0.1).decouple_lr(true).clone())});
  SetGradients(weights, 1);
  optimizer.step();
  optimizer.param_groups()[0].options().set_lr(0.5);
  optimizer.step();
  const std::int64_t before = allocations;
  for (int step = 0; step < 3; ++step) optimizer.step();
  EXPECT_EQ(allocations - before, 0);
  EXPECT_EQ(StateOf(optimizer, weights[2]).tensor("step").item<float>(), 5.0F);
}

TEST(Step, FollowsWeightsThatMoved) {
  const std::vector<torch::Tensor> weights = Weights(), twins = Copy(weights);
  FlashAdamW a(weights), b(twins);
  for (int step = 0; step < 3; ++step) {
    const torch::Tensor& moved = weights[0];
    moved.set_data(moved.detach().clone());
    SetGradients(weights, step);
    SetGradients(twins, step);
    a.step();
    b.step();
  }
  ExpectSame(a, weights, b, twins);
}

TEST(Step, GoesOnAfterTheOptimizerIsMoved) {
  const std::vector<torch::Tensor> weights = Weights(), twins = Copy(weights);
  auto a = std::make_unique<FlashAdamW>(weights);
  FlashAdamW b(twins);
  for (int step = 0; step < 3; ++step) {
    a = std::make_unique<FlashAdamW>(std::move(*a));
    SetGradients(weights, step);
    SetGradients(twins, step);
    a->step();
    b.step();
  }
  ExpectSame(*a, weights, b, twins);
}

TEST(Step, CountsWhatIsSkipped) {
  const std::vector<torch::Tensor> weights = Weights();
  const std::vector<torch::Tensor> before = Copy(weights);
  FlashAdamW optimizer(weights, FlashAdamWOptions().storage({.nonfinite = Nonfinite::kSkip}));
  SetGradients(weights, 1);
  weights[1].grad().fill_(std::numeric_limits<float>::infinity());
  optimizer.step();
  EXPECT_EQ(optimizer.skipped_tensors(), 1U);
  EXPECT_TRUE(SameBits(weights[1], before[1]));
  EXPECT_FALSE(SameBits(weights[0], before[0]));
}

TEST(MasterWeights, AreReadAndWritten) {
  torch::Tensor weight = Weight({8, 96});
  FlashAdamW optimizer({weight}, FlashAdamWOptions().storage({.master_weight_bits = 32}));
  EXPECT_TRUE(SameBits(optimizer.master_weight(weight), weight.detach().to(torch::kFloat)));
  SetGradients({weight}, 1);
  optimizer.step();
  const torch::Tensor values = at::randn({8, 96});
  optimizer.set_master_weight(weight, values);
  EXPECT_TRUE(SameBits(optimizer.master_weight(weight), values));
  EXPECT_LT((weight.detach().to(torch::kFloat) - values).abs().max().item<float>(), 0.02F);
  ExpectError([&] { optimizer.set_master_weight(weight, at::randn({8, 95})); }, "shape");
}

TEST(MasterWeights, AreWrittenBeforeTheFirstStep) {
  const torch::Tensor values = at::randn({8, 96});
  torch::Tensor early = Weight({8, 96});
  torch::Tensor late = Weight({8, 96});
  torch::Tensor frozen = Weight({8, 96}).detach();
  torch::Tensor other = Weight({3, 64});
  FlashAdamW optimizer({other, early, frozen},
                       FlashAdamWOptions().storage({.master_weight_bits = 32}));
  optimizer.set_master_weight(early, values);
  EXPECT_TRUE(SameBits(optimizer.master_weight(early), values));
  optimizer.set_master_weight(frozen, values);
  EXPECT_TRUE(SameBits(frozen, values.to(frozen.scalar_type())));
  EXPECT_EQ(optimizer.state().size(), 1U);
  ExpectError([&] { optimizer.set_master_weight(late, values); }, "not a parameter");

  // The same bits as written between steps, for which a step that changes nothing makes the state.
  FlashAdamW twin({other.clone().detach().requires_grad_(true), late},
                  FlashAdamWOptions().storage({.master_weight_bits = 32}));
  late.mutable_grad() = at::zeros_like(late);
  twin.step();
  twin.set_master_weight(late, values);
  EXPECT_TRUE(SameBits(early, late));
  EXPECT_TRUE(SameBits(optimizer.master_weight(early), twin.master_weight(late)));
  SetGradients({other, early}, 1);
  optimizer.step();
  EXPECT_EQ(optimizer.state().size(), 2U);
  EXPECT_FALSE(SameBits(optimizer.master_weight(early), values));
  EXPECT_LT((optimizer.master_weight(early) - values).abs().max().item<float>(), 0.1F);
}

TEST(Errors, NameWhatCannotBeStepped) {
  ExpectError([] { FlashAdamW({Weight({4}, torch::kDouble)}); },
              "parameter 0 of group 0: its dtype is Double");
  ExpectError(
      [] {
        FlashAdamW({Weight({4, 4}).detach().slice(1, 0, 2).requires_grad_(true)});
      },
      "holes or overlaps");
  ExpectError([] { FlashAdamW({Weight({4})}, FlashAdamWOptions(-1.0)); }, "parameter group 0: lr");
  ExpectError(
      [] {
        FlashAdamW({OptimizerParamGroup({Weight({4})},
                                        std::make_unique<torch::optim::AdamWOptions>(0.1))});
      },
      "parameter group 0: its options are of an optimizer of torch::optim");
}

TEST(Errors, LeaveTheGroupsAsTheyWere) {
  FlashAdamW optimizer({Weight({4})});
  ExpectError(
      [&] { optimizer.add_param_group(OptimizerParamGroup({Weight({4}, torch::kDouble)})); },
      "parameter 0 of group 1");
  EXPECT_EQ(optimizer.param_groups().size(), 1U);
}

TEST(Errors, NameWhoseGradientCannotBeRead) {
  const std::vector<torch::Tensor> weights = Weights();
  const std::vector<torch::Tensor> before = Copy(weights);
  FlashAdamW optimizer(weights);
  // A gradient of another dtype is set where autograd's check does not see it.
  SetGradients(weights, 1);
  const torch::Tensor& third = weights[2];
  third.mutable_grad() = at::zeros({4, 70}, torch::kDouble);
  ExpectError([&] { optimizer.step(); }, "parameter 2 of group 0: its gradient is Double");
  third.mutable_grad() = at::zeros({4, 71}, torch::kHalf);
  ExpectError([&] { optimizer.step(); }, "parameter 2 of group 0: its gradient is [4, 71] on cpu");
  third.mutable_grad() = at::zeros({4, 70}, torch::kHalf).to_sparse();
  ExpectError([&] { optimizer.step(); }, "parameter 2 of group 0: its gradient is sparse");
  for (std::size_t i = 0; i < weights.size(); ++i) EXPECT_TRUE(SameBits(weights[i], before[i]));
}

TEST(Errors, RefuseWhatNeedsAnotherState) {
  const std::vector<torch::Tensor> weights = Weights();
  FlashAdamW optimizer(weights);
  SetGradients(weights, 1);
  optimizer.step();
  auto& options = dynamic_cast<FlashAdamWOptions&>(optimizer.param_groups()[0].options());
  options.storage().quantize = false;
  ExpectError([&] { optimizer.step(); }, "make a new optimizer");
  options.storage().quantize = true;
  optimizer.step();
  const torch::Tensor& first = weights[0];
  first.mutable_grad().reset();
  first.set_data(first.detach().to(torch::kFloat));
  ExpectError([&] { optimizer.step(); }, "parameter 0 of group 0: its state");
}

}  // namespace
}  // namespace flashoptim

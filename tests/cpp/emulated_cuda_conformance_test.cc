// The CUDA kernels, run by the CPU (emulated_cuda/), against the target `scalar`: every byte of
// state after every step.
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "cases.h"
#include "core/tensor_task.h"
#include "cuda/kernels.h"
#include "emulated_cuda/warp.h"
#include "flashoptim/errors.h"
#include "flashoptim/plan.h"
#include "flashoptim/runtime.h"
#include "sanitizers.h"
#include "tensor_state.h"

namespace flashoptim {
namespace {

using testing::RuleCase;
using testing::Shape;
using testing::StepCase;
using testing::TensorState;
using testing::Values;

// What a backend is told about a step besides the tensors.
struct Way {
  bool device_scalars = false;
  bool scaled_gradients = false;
  bool misaligned = false;
  std::uint64_t first_group = 0;
  std::uint64_t gap = 0;  // groups between a row and the next one, in the whole tensor
  std::uint32_t first_in_group = 0;
};

// Tensors of several shapes in one plan, on the emulated GPU or on the CPU.
class Side {
 public:
  Side(const StepCase& step_case, const std::vector<Shape>& shapes, const Way& way, bool on_gpu) {
    tensors_.reserve(shapes.size());
    std::vector<TensorBinding> bindings;
    for (std::size_t i = 0; i < shapes.size(); ++i) {
      tensors_.emplace_back(step_case, shapes[i], 1000 + i, way.misaligned);
      TensorBinding& binding = bindings.emplace_back(tensors_.back().Binding());
      binding.first_group = way.first_group;
      binding.first_in_group = way.first_in_group;
      if (way.gap != 0) binding.group_stride = core::GroupsPerRow(shapes[i].row_length) + way.gap;
      if (on_gpu) binding.device_type = DeviceType::kCuda;
      binding.step_on_device = on_gpu && way.device_scalars;
    }
    plan_ = std::make_unique<Plan>(step_case.rule.rule, std::move(bindings), 1);
    plan_->SetHyperparameters(0, step_case.rule.hyper);
    if (on_gpu && way.device_scalars) {
      plan_->SetGradientScaling(0, way.scaled_gradients ? &kScale : nullptr, found_inf_.get());
    } else if (way.scaled_gradients) {
      plan_->SetGradientScale(kScale);
    }
  }

  TensorState& tensor(std::size_t i) { return tensors_[i]; }
  void FindInfinity(bool found) { *found_inf_ = found ? 1.0F : 0.0F; }

  std::uint64_t Step(int step) {
    for (std::size_t i = 0; i < tensors_.size(); ++i) {
      tensors_[i].FillGradient(step);
      plan_->SetGradient(i, tensors_[i].CurrentGradient());
    }
    return Step();
  }
  // With the gradients of the step before.
  std::uint64_t Step() { return plan_->Step(); }

  // Empty if all bytes agree.
  std::string DifferenceFrom(const Side& other) const {
    for (std::size_t i = 0; i < tensors_.size(); ++i) {
      std::string difference = tensors_[i].DifferenceFrom(other.tensors_[i]);
      if (!difference.empty()) return difference;
      if (!tensors_[i].GuardsAreIntact()) return "wrote outside of a buffer";
    }
    return "";
  }

 private:
  static constexpr float kScale = 8.0F;

  std::vector<TensorState> tensors_;
  std::unique_ptr<float> found_inf_ = std::make_unique<float>(0.0F);
  std::unique_ptr<Plan> plan_;
};

class EmulatedCuda : public ::testing::Test {
 protected:
  void SetUp() override {
    if (testing::kThreadSanitizer)
      GTEST_SKIP() << "it does not follow ucontext, and all is one thread";
    SetCpuTarget("scalar");
    SetCpuThreads(1);
  }
};

void ExpectSameBytes(const StepCase& step_case, const std::vector<Shape>& shapes, const Way& way,
                     int steps) {
  Side cpu(step_case, shapes, way, false);
  Side gpu(step_case, shapes, way, true);
  for (int step = 1; step <= steps; ++step) {
    cpu.Step(step);
    gpu.Step(step);
    ASSERT_EQ(gpu.DifferenceFrom(cpu), "")
        << "step " << step << (way.device_scalars ? ", scalars on the device" : "")
        << (way.scaled_gradients ? ", scaled gradients" : "")
        << (way.misaligned ? ", misaligned" : "") << ", first group " << way.first_group << ", gap "
        << way.gap;
  }
}

// Of the third step some gradients are not finite, so that the fourth finds flagged groups.
constexpr int kSteps = 4;

TEST_F(EmulatedCuda, EveryDtypeOfEveryRule) {
  std::size_t turn = 0;
  for (const StepCase& step_case : testing::ThinCases()) {
    Way way;
    way.device_scalars = turn % 2 != 0;
    way.misaligned = turn % 3 == 1;
    way.scaled_gradients = turn % 5 == 2;
    if (turn % 7 == 3) way.gap = 5;
    ++turn;
    ExpectSameBytes(step_case, testing::SmallShapes(), way, kSteps);
    if (HasFatalFailure()) return;
  }
}

// One rule for each kernel, whose gradients need no work before the update.
std::vector<RuleCase> OneRulePerKernel() {
  std::vector<RuleCase> rules;
  for (RuleCase rule : testing::RuleCases()) {
    for (const char* name : {"sgd", "sgd_nesterov", "adamw", "adam_amsgrad", "lion"}) {
      if (rule.name != name) continue;
      if (rule.hyper.weight_decay_kind == WeightDecay::kCoupled) {
        rule.hyper.weight_decay_kind = WeightDecay::kDecoupled;
      }
      rules.push_back(rule);
    }
  }
  return rules;
}

// What may have a fast kernel; and one case of codec none for each careful kernel.
std::vector<StepCase> CasesOfForms() {
  std::vector<StepCase> cases;
  for (const RuleCase& rule : OneRulePerKernel()) {
    StepCase step_case = {rule, Codec::kNone, {"bf16+8", DType::kBFloat16, 8}, DType::kBFloat16};
    step_case.rule.hyper.stochastic_rounding = false;
    cases.push_back(step_case);
    if (!rule.first) continue;
    for (const Codec codec : {Codec::kRoot, Codec::kSoftsign}) {
      for (const std::int32_t bits : {8, 16}) {
        for (const bool stochastic : {false, true}) {
          for (const Values values : {Values::kOrdinary, Values::kNonfinite, Values::kWild}) {
            step_case = {rule, codec, {"bf16", DType::kBFloat16, bits}, DType::kBFloat16, values};
            step_case.rule.hyper.stochastic_rounding = stochastic;
            cases.push_back(step_case);
          }
        }
      }
    }
  }
  return cases;
}

std::set<const void*> AllKernels() {
  std::set<const void*> kernels;
  for (const cuda::KernelSet* set :
       {&cuda::SgdKernels(), &cuda::SgdMomentumKernels(), &cuda::AdamKernels(),
        &cuda::AdamMaximumKernels(), &cuda::LionKernels()}) {
    for (const cuda::KernelsByForm* forms : {&set->host_scalars, &set->device_scalars}) {
      for (const cuda::Kernel kernel : *forms) {
        kernels.insert(reinterpret_cast<const void*>(kernel));
      }
    }
  }
  return kernels;
}

TEST_F(EmulatedCuda, EveryKernel) {
  // Tensors of a warp that is not full, and of a pass and a bit.
  const std::vector<Shape> shapes = {{3, 128, 0}, {33, 64, 0}};
  for (const StepCase& step_case : CasesOfForms()) {
    for (const bool device_scalars : {false, true}) {
      for (const bool scaled : {false, true}) {
        for (const std::uint64_t gap : {0U, 3U}) {
          ExpectSameBytes(step_case, shapes, {device_scalars, scaled, false, 2, gap}, kSteps);
          if (HasFatalFailure()) return;
        }
      }
    }
  }
  std::set<const void*> missing = AllKernels();
  for (const void* kernel : emulated_cuda::Launched()) missing.erase(kernel);
  EXPECT_EQ(missing.size(), 0U) << "of " << AllKernels().size() << " kernels";
}

// A tensor with random weights gets a fast kernel, unless it is parts of rows in softsign. With 32
// bits there is nothing random about it.
TEST_F(EmulatedCuda, RandomWeightsHaveFastKernels) {
  const std::vector<std::pair<std::string, const cuda::KernelSet*>> rules = {
      {"sgd_nesterov", &cuda::SgdMomentumKernels()},
      {"adamw", &cuda::AdamKernels()},
      {"adam_amsgrad", &cuda::AdamMaximumKernels()},
      {"lion", &cuda::LionKernels()}};
  for (StepCase step_case : CasesOfForms()) {
    if (!step_case.rule.first || !step_case.rule.hyper.stochastic_rounding) continue;
    const auto set = std::find_if(rules.begin(), rules.end(), [&](const auto& rule) {
      return rule.first == step_case.rule.name;
    });
    ASSERT_NE(set, rules.end());
    for (const std::uint64_t gap : {0U, 3U}) {
      const bool wide = step_case.weight.correction_bits == 16;
      const bool softsign = step_case.codec == Codec::kSoftsign;
      const bool draws = !wide || (!softsign && step_case.rule.second);
      Side(step_case, {{2, 64, 0}}, {.gap = gap}, true).Step(1);
      const cuda::Kernel expected =
          set->second->host_scalars[cuda::NumberOf({.softsign = softsign,
                                                    .wide_correction = wide,
                                                    .parts_of_rows = draws && gap != 0,
                                                    .stochastic_weight = !wide})];
      EXPECT_EQ(emulated_cuda::Launched().back(), reinterpret_cast<const void*>(expected))
          << step_case.Name();
      EXPECT_EQ(expected == set->second->host_scalars.front(), softsign && !wide && gap != 0);
    }
  }
}

// A careful step would show: in the maxima over a group, which it takes of flags, too.
TEST_F(EmulatedCuda, OrdinaryValuesTakeTheFastPath) {
  constexpr unsigned kExchangesPerMaximum = 3;  // of eight threads
  constexpr unsigned kWarps = 10;               // that have some of 37 groups
  for (const StepCase& step_case : CasesOfForms()) {
    const RuleCase& rule = step_case.rule;
    if (step_case.values != Values::kOrdinary || step_case.codec == Codec::kNone) continue;
    const unsigned maxima = 1U + (rule.second ? 1U : 0U) + (rule.maximum ? 1U : 0U);
    Side gpu(step_case, {{37, 64, 0}}, {}, true);
    for (int step = 1; step <= kSteps; ++step) {
      const std::uint64_t before = emulated_cuda::Exchanges();
      gpu.Step(step);
      EXPECT_EQ(emulated_cuda::Exchanges() - before, kWarps * (kExchangesPerMaximum * maxima + 1))
          << step_case.Name();
    }
  }
}

// Positions in the whole tensor at which the counters of random numbers leave 32 bits.
TEST_F(EmulatedCuda, GroupsFarIntoTheWholeTensor) {
  constexpr std::uint64_t kCarry = std::uint64_t{1} << 28;
  for (const StepCase& step_case : CasesOfForms()) {
    if (step_case.values != Values::kOrdinary) continue;
    for (const std::uint64_t first : {kCarry - 5, kCarry, 7 * kCarry + 9}) {
      for (const std::uint64_t gap : {std::uint64_t{0}, kCarry / 2}) {
        ExpectSameBytes(step_case, {{3, 192, 0}}, {false, false, false, first, gap}, 2);
        if (HasFatalFailure()) return;
      }
    }
  }
}

// Shards that begin inside a group, where rounding alone draws.
TEST_F(EmulatedCuda, BeginningsInsideGroups) {
  for (StepCase step_case : testing::ThinCases()) {
    step_case.codec = Codec::kNone;
    step_case.rule.hyper.stochastic_rounding = true;
    for (const std::uint32_t position : {1U, 30U, 63U}) {
      const Way way = {.first_group = (std::uint64_t{1} << 28) - 1, .first_in_group = position};
      ExpectSameBytes(step_case, {{1, 200, 0}, {3, 70, 0}}, way, 2);
      if (HasFatalFailure()) return;
    }
  }
}

// The search for a block's tensor: more blocks than hints, tensors of one block beside large ones.
TEST_F(EmulatedCuda, ManyBlocksInOneLaunch) {
  const StepCase step_case = {OneRulePerKernel().back(),
                              Codec::kRoot,
                              {"bf16", DType::kBFloat16, 8},
                              DType::kBFloat16,
                              Values::kOrdinary};
  ExpectSameBytes(step_case,
                  {{1, 64, 0},
                   {300, 128 * 64, 0},
                   {1, 64, 0},
                   {2, 64, 0},
                   {400, 128 * 64 + 64, 0},
                   {129, 64, 0}},
                  {}, 1);
}

// And more tensors than one launch takes.
TEST_F(EmulatedCuda, ManyTensorsInOneStep) {
  std::vector<Shape> shapes;
  for (std::uint64_t i = 0; i < 400; ++i) shapes.push_back({1, 64 * (i % 3) + i % 2, 0});
  const StepCase step_case = {OneRulePerKernel().front(),
                              Codec::kNone,
                              {"bf16", DType::kBFloat16, 8},
                              DType::kBFloat16,
                              Values::kOrdinary};
  ExpectSameBytes(step_case, shapes, {}, 2);
}

// GradScaler found an infinity: nothing changes, not even the count of steps.
TEST_F(EmulatedCuda, AStepIsSkippedOnTheDevice) {
  for (const StepCase& step_case : CasesOfForms()) {
    if (step_case.values != Values::kOrdinary) continue;
    const std::vector<Shape> shapes = {{5, 64, 0}};
    Side cpu(step_case, shapes, {}, false);
    Side gpu(step_case, shapes, {true}, true);
    cpu.Step(1);
    gpu.Step(1);
    gpu.FindInfinity(true);
    gpu.Step(2);
    ASSERT_EQ(gpu.DifferenceFrom(cpu), "");
    gpu.FindInfinity(false);
    cpu.Step(2);
    gpu.Step(2);
    ASSERT_EQ(gpu.DifferenceFrom(cpu), "");
  }
}

TEST_F(EmulatedCuda, TensorsWithNonfiniteGradientsAreFound) {
  StepCase step_case = testing::ThinCases().front();
  const std::vector<Shape> shapes = {{3, 70, 0}, {200, 64, 0}, {1, 1, 0}, {0, 64, 0}, {5, 64, 0}};
  for (const DType dtype : {DType::kBFloat16, DType::kFloat16, DType::kFloat32}) {
    step_case.gradient_dtype = dtype;
    step_case.values = Values::kOrdinary;
    step_case.rule.hyper.nonfinite = Nonfinite::kSkip;
    Side cpu(step_case, shapes, {}, false);
    Side gpu(step_case, shapes, {}, true);
    for (Side* side : {&cpu, &gpu}) {
      EXPECT_EQ(side->Step(1), 0U);
      for (const std::size_t i : {0U, 1U, 4U}) {
        testing::Buffer& gradient = side->tensor(i).buffer(testing::kGradient);
        gradient.data()[gradient.size() - 1] = std::byte{0x7f};  // the exponent, then an infinity
        gradient.data()[gradient.size() - 2] = std::byte{0xfc};
      }
      EXPECT_EQ(side->Step(), 3U);
    }
    EXPECT_EQ(gpu.DifferenceFrom(cpu), "");
  }
}

}  // namespace
}  // namespace flashoptim

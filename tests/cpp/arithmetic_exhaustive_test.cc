// Reciprocal, root and fused multiply-add of every CPU target, correctly rounded (docs/format.md,
// section 1). They are reached through steps whose hyper-parameters make the rest of the rule drop
// out, so that the new weight is the result itself.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "flashoptim/plan.h"
#include "flashoptim/runtime.h"
#include "tensor_state.h"

namespace flashoptim {
namespace {

using testing::Random;

std::uint32_t Bits(float x) { return std::bit_cast<std::uint32_t>(x); }
float FromBits(std::uint32_t bits) { return std::bit_cast<float>(bits); }

// Roots and quotients of floats are correctly rounded when they are rounded to binary64 first,
// because 53 >= 2 * 24 + 2 (Figueroa); so are products, which binary64 holds exactly.
float RoundedRoot(float x) { return static_cast<float>(std::sqrt(static_cast<double>(x))); }
float RoundedReciprocal(float x) { return static_cast<float>(1.0 / static_cast<double>(x)); }
float RoundedProduct(float a, float b) {
  return static_cast<float>(static_cast<double>(a) * static_cast<double>(b));
}

// a * b + c in binary64, rounded to odd, which a second rounding cannot spoil (Boldo and
// Melquiond).
float RoundedFma(float a, float b, float c) {
  const double product = static_cast<double>(a) * static_cast<double>(b);  // exact
  const double addend = c;
  double sum = product + addend;
  const double back = sum - product;
  const double error = (product - (sum - back)) + (addend - back);
  if (error != 0.0 && (std::bit_cast<std::uint64_t>(sum) & 1U) == 0) {
    sum = std::nextafter(sum, error > 0.0 ? HUGE_VAL : -HUGE_VAL);
  }
  return static_cast<float>(sum);
}

// An fp32 tensor without codec, as arrays. A rule uses those that it has.
struct Arrays {
  explicit Arrays(std::size_t size) : w(size), g(size), first(size), second(size), maximum(size) {}

  TensorBinding Binding(Rule rule, bool amsgrad) {
    TensorBinding binding;
    binding.name = "arrays";
    binding.weight = w.data();
    binding.rows = 1;
    binding.row_length = w.size();
    binding.step = &step;
    if (rule == Rule::kAdam) {
      binding.first_moment = first.data();
      binding.second_moment = second.data();
      if (amsgrad) binding.maximum = maximum.data();
    }
    return binding;
  }

  std::vector<float> w, g, first, second, maximum;
  float step = 0.0F;
};

// m stays what it is and alpha is 1: 1 - 2^-53 is 1 as a float, and gradients up to 2^28 times
// 2^-53 vanish beside an m of 1. So w - 1/d is the new weight, with d = RN(root of n) * kappa +
// eps.
Hyperparameters OnlyTheDenominator(double beta2, double eps) {
  Hyperparameters h;
  h.lr = 0x1p-53;
  h.beta1 = 1.0 - 0x1p-53;
  h.beta2 = beta2;
  h.eps = eps;
  return h;
}

float Kappa(double beta2) { return static_cast<float>(1.0 / std::sqrt(1.0 - beta2)); }

constexpr std::uint32_t kBlock = 1U << 20;
constexpr std::uint32_t kOneBits = 0x3f800000U;
constexpr std::uint32_t kBinade = 0x800000U;

class EveryTarget : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override { SetCpuTarget(GetParam()); }
};

// The root of n = g * g is |g|.
TEST_P(EveryTarget, ReciprocalsOfAllMantissas) {
  Arrays a(kBlock);
  Plan plan(Rule::kAdam, {a.Binding(Rule::kAdam, false)}, 1);
  plan.SetHyperparameters(0, OnlyTheDenominator(0.0, 0.0));
  for (std::uint32_t block = kOneBits; block != kOneBits + kBinade; block += kBlock) {
    for (std::uint32_t i = 0; i < kBlock; ++i) a.g[i] = FromBits(block + i);
    a.w.assign(kBlock, 0.0F);
    a.first.assign(kBlock, 1.0F);
    a.step = 0.0F;
    plan.SetGradient(0, {a.g.data(), DType::kFloat32});
    plan.Step();
    for (std::uint32_t i = 0; i < kBlock; ++i) {
      ASSERT_EQ(-a.w[i], RoundedReciprocal(a.g[i])) << std::hexfloat << a.g[i];
      // Without trust in binary64: no float is nearer, by the exact residual r * d - 1.
      const double r = -a.w[i];
      const double unit = std::bit_cast<double>(Bits(-a.w[i]) == kOneBits ? 0x3e80000000000000U
                                                                          : 0x3e70000000000000U);
      ASSERT_LE(2.0 * std::abs(r * static_cast<double>(a.g[i]) - 1.0),
                unit * static_cast<double>(a.g[i]));
    }
  }
}

// d = eps, far from and near to the 2^-50 that the floor of the second moment leaves in it.
TEST_P(EveryTarget, ReciprocalsOfAllExponents) {
  Random random(11);
  std::vector<Arrays> tensors;
  std::vector<float> eps;
  for (int exponent = -70; exponent < 100; ++exponent) {
    for (int i = 0; i < 12; ++i)
      eps.push_back(
          std::ldexp(1.0F + 0x1p-24F * static_cast<float>(random.Below(1 << 23)), exponent));
  }
  tensors.reserve(eps.size());
  std::vector<TensorBinding> bindings;
  for (std::size_t i = 0; i < eps.size(); ++i) {
    tensors.emplace_back(kGroupSize);
    tensors[i].first.assign(kGroupSize, 1.0F);
    bindings.push_back(tensors[i].Binding(Rule::kAdam, false));
    bindings[i].parameter_group = static_cast<std::uint32_t>(i);
  }
  Plan plan(Rule::kAdam, bindings, static_cast<std::uint32_t>(eps.size()));
  for (std::size_t i = 0; i < eps.size(); ++i) {
    plan.SetHyperparameters(static_cast<std::uint32_t>(i), OnlyTheDenominator(0.0, eps[i]));
    plan.SetGradient(i, {tensors[i].g.data(), DType::kFloat32});
  }
  plan.Step();
  for (std::size_t i = 0; i < eps.size(); ++i) {
    const float d = RoundedFma(0x1p-50F, 1.0F, eps[i]);
    for (const float w : tensors[i].w) ASSERT_EQ(-w, RoundedReciprocal(d)) << eps[i];
  }
}

// Steps x in `maximum` with a kappa and compares with 1 / (root * kappa).
class RootStep {
 public:
  RootStep(std::size_t size, double beta2)
      : arrays_(size),
        kappa_(Kappa(beta2)),
        plan_(Rule::kAdam, {arrays_.Binding(Rule::kAdam, true)}, 1) {
    plan_.SetHyperparameters(0, OnlyTheDenominator(beta2, 0.0));
    plan_.SetGradient(0, {arrays_.g.data(), DType::kFloat32});
  }

  std::vector<float>& arguments() { return arrays_.maximum; }
  float Expected(float root) const { return -RoundedReciprocal(RoundedProduct(root, kappa_)); }
  float Got(std::size_t i) const { return arrays_.w[i]; }

  void Run() {
    arrays_.w.assign(arrays_.w.size(), 0.0F);
    arrays_.first.assign(arrays_.w.size(), 1.0F);
    arrays_.second.assign(arrays_.w.size(), 0.0F);
    arrays_.step = 0.0F;
    plan_.Step();
  }

 private:
  Arrays arrays_;
  float kappa_;
  Plan plan_;
};

// One reciprocal hides some errors of a root by one unit. Each kappa hides others; together the
// runs must tell every root from both its neighbours.
TEST_P(EveryTarget, RootsOfAllMantissas) {
  std::vector<std::uint8_t> told(2 * kBinade, 0);
  std::uint64_t untold = told.size();
  int runs = 0;
  for (double beta2 = 0.0; untold != 0 && beta2 < 0.75;
       beta2 = beta2 == 0.0 ? 0.45 : beta2 + 0.0113) {
    ++runs;
    untold = 0;
    RootStep step(kBlock, beta2);
    for (std::uint32_t block = 0; block != 2 * kBinade; block += kBlock) {
      for (std::uint32_t i = 0; i < kBlock; ++i) {
        step.arguments()[i] = FromBits(kOneBits + block + i);
      }
      step.Run();
      for (std::uint32_t i = 0; i < kBlock; ++i) {
        const float root = RoundedRoot(FromBits(kOneBits + block + i));
        const float expected = step.Expected(root);
        ASSERT_EQ(step.Got(i), expected) << std::hexfloat << FromBits(kOneBits + block + i);
        std::uint8_t& flags = told[block + i];
        if (step.Expected(FromBits(Bits(root) - 1U)) != expected) flags |= 1U;
        if (step.Expected(FromBits(Bits(root) + 1U)) != expected) flags |= 2U;
        if (flags != 3U) ++untold;
      }
    }
  }
  EXPECT_EQ(untold, 0U) << "after " << runs << " runs";
}

TEST_P(EveryTarget, RootsOfAllExponents) {
  Random random(12);
  std::vector<float> arguments = {0x1p-100F, FromBits(0x7f7fffffU), FromBits(0x7f7ffffeU)};
  for (std::uint32_t exponent = 28; exponent < 255; ++exponent) {
    for (int i = 0; i < 200; ++i) {
      const auto fraction = static_cast<std::uint32_t>(random.Below(kBinade));
      arguments.push_back(FromBits((exponent << 23) | fraction));
    }
  }
  for (const double beta2 : {0.0, 0.5, 0.9}) {
    RootStep step(arguments.size(), beta2);
    step.arguments() = arguments;
    step.Run();
    for (std::size_t i = 0; i < arguments.size(); ++i) {
      ASSERT_EQ(step.Got(i), step.Expected(RoundedRoot(arguments[i]))) << arguments[i];
    }
  }
}

// SGD with lr = 1: the new weight is fma(w, decay, -g).
TEST_P(EveryTarget, FmaRoundsOnce) {
  constexpr std::size_t kSize = 1 << 14;
  Random random(13);
  std::uint64_t told = 0;
  for (int round = 0; round < 64; ++round) {
    const double weight_decay = 0x1p-24 * static_cast<double>(random.Below(1 << 23));
    const float decay = static_cast<float>(1.0 - weight_decay);
    Arrays a(kSize);
    for (std::size_t i = 0; i < kSize; ++i) {
      a.w[i] = FromBits(random.Image(DType::kFloat32, -3, 3));
      const float product = RoundedProduct(a.w[i], decay);
      // Far below the product, so that it decides a tie; near to it, so that it cancels; any.
      switch (i % 3) {
        case 0:
          a.g[i] = std::ldexp(product, -24 - static_cast<int>(random.Below(26)));
          break;
        case 1:
          a.g[i] = FromBits(Bits(product) + static_cast<std::uint32_t>(random.Below(9)) - 4U);
          break;
        default:
          a.g[i] = FromBits(random.Image(DType::kFloat32, -30, 30));
      }
    }
    const std::vector<float> before = a.w;
    Hyperparameters h;
    h.lr = 1.0;
    h.weight_decay = weight_decay;
    h.weight_decay_kind = WeightDecay::kDecoupled;
    Plan plan(Rule::kSgd, {a.Binding(Rule::kSgd, false)}, 1);
    plan.SetHyperparameters(0, h);
    plan.SetGradient(0, {a.g.data(), DType::kFloat32});
    plan.Step();
    for (std::size_t i = 0; i < kSize; ++i) {
      ASSERT_EQ(Bits(a.w[i]), Bits(RoundedFma(before[i], decay, -a.g[i])))
          << std::hexfloat << before[i] << " * " << decay << " - " << a.g[i];
      if (RoundedProduct(before[i], decay) - a.g[i] != a.w[i]) ++told;
    }
  }
  EXPECT_GT(told, 64 * kSize / 10) << "too few cases where rounding twice differs";
}

INSTANTIATE_TEST_SUITE_P(Targets, EveryTarget, ::testing::ValuesIn(CpuTargets()),
                         [](const auto& target) { return target.param; });

}  // namespace
}  // namespace flashoptim

// Which CPU targets there are, and what happens when one is asked for that there is not.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <set>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

#include "flashoptim/plan.h"
#include "flashoptim/runtime.h"
#include "one_weight_plan.h"

namespace flashoptim {
namespace {

// The message of the std::invalid_argument that asking for the target in use gives.
std::string RefusalOfCpuTarget() {
  try {
    return "no error but " + CpuTarget();
  } catch (const std::invalid_argument& error) {
    return error.what();
  }
}

// Each of these runs in a program of its own, which has not chosen a target yet.
class FreshProcess : public ::testing::Test {
 protected:
  void SetUp() override { ::testing::GTEST_FLAG(death_test_style) = "threadsafe"; }
};
using FreshProcessDeathTest = FreshProcess;

[[noreturn]] void PrintTarget(const char* forced) {
  setenv("FLASHOPTIM_CPU_TARGET", forced, 1);
  std::fprintf(stderr, "target: %s\n", RefusalOfCpuTarget().c_str());
  std::exit(0);
}

TEST_F(FreshProcessDeathTest, EveryTargetCanBeForced) {
  for (const std::string& name : CpuTargets()) {
    EXPECT_EXIT(PrintTarget(name.c_str()), ::testing::ExitedWithCode(0),
                "target: no error but " + name);
  }
}

TEST_F(FreshProcessDeathTest, AnEmptyNameIsTheBestTarget) {
  EXPECT_EXIT(PrintTarget(""), ::testing::ExitedWithCode(0),
              "target: no error but " + CpuTargets().front());
}

TEST_F(FreshProcessDeathTest, AnUnknownNameIsAnErrorWithTheChoices) {
  EXPECT_EXIT(PrintTarget("avx1024"), ::testing::ExitedWithCode(0),
              "target: CPU target 'avx1024' is unknown.*" + CpuTargets().front() +
                  ".*scalar.*FLASHOPTIM_CPU_TARGET");
}

[[noreturn]] void StepWithAnUnknownTarget() {
  setenv("FLASHOPTIM_CPU_TARGET", "avx1024", 1);
  float w = 1.0F;
  float step = 0.0F;
  const float g = 1.0F;
  Plan plan = OneWeightPlan(&w, &step);
  plan.SetGradient(0, {&g, DType::kFloat32});
  try {
    plan.Step();
  } catch (const std::invalid_argument& error) {
    std::fprintf(stderr, "%s; w %g, step %g\n", error.what(), static_cast<double>(w),
                 static_cast<double>(step));
    std::exit(0);
  }
  std::exit(1);
}

TEST_F(FreshProcessDeathTest, AStepWithAnUnknownNameWritesNothing) {
  EXPECT_EXIT(StepWithAnUnknownTarget(), ::testing::ExitedWithCode(0),
              "'avx1024' is unknown.*w 1, step 0");
}

TEST(Targets, BestFirstAndScalarLast) {
  const std::vector<std::string> targets = CpuTargets();
  ASSERT_FALSE(targets.empty());
  EXPECT_EQ(targets.back(), "scalar");
  const std::vector<std::string> order = {"avx512_vbmi", "avx512", "avx2", "neon", "scalar"};
  auto place = order.begin();
  for (const std::string& target : targets) {
    place = std::find(place, order.end(), target);
    ASSERT_NE(place, order.end()) << target << " is unknown or out of order";
  }
}

TEST(Targets, AnUnknownNameLeavesTheChoice) {
  SetCpuTarget("scalar");
  for (const std::string& name : {std::string("sse2"), std::string()}) {
    try {
      SetCpuTarget(name);
      FAIL() << name << " was accepted";
    } catch (const std::invalid_argument& error) {
      const std::string message = error.what();
      EXPECT_NE(message.find("'" + name + "'"), std::string::npos);
      for (const std::string& target : CpuTargets()) {
        EXPECT_NE(message.find(target), std::string::npos) << message;
      }
    }
  }
  EXPECT_EQ(CpuTarget(), "scalar");
}

TEST(Runtime, SaysWhatItIs) {
  EXPECT_EQ(std::count(Version(), Version() + std::string(Version()).size(), '.'), 2);
  EXPECT_NE(CudaStatus(), "");
}

// Linux lists what processor and kernel have together, so this sees both.
TEST(InstructionSets, AreThoseThatTheKernelLists) {
#if defined(__x86_64__) && defined(__linux__)
  std::ifstream file("/proc/cpuinfo");
  std::set<std::string> flags;
  for (std::string line; flags.empty() && std::getline(file, line);) {
    if (!line.starts_with("flags")) continue;
    std::istringstream words(line.substr(line.find(':') + 1));
    flags.insert(std::istream_iterator<std::string>(words), std::istream_iterator<std::string>());
  }
  ASSERT_TRUE(flags.contains("sse2"));
  const auto has = [&](const std::vector<std::string>& all) {
    return std::ranges::all_of(all, [&](const auto& flag) { return flags.contains(flag); });
  };
  const bool avx2 = has({"pclmulqdq", "ssse3", "fma", "sse4_1", "sse4_2", "popcnt", "aes", "avx",
                         "f16c", "bmi1", "avx2", "bmi2"});
  const bool avx512 = avx2 && has({"avx512f", "avx512dq", "avx512cd", "avx512bw", "avx512vl"});
  const bool vbmi = avx512 && has({"avx512vbmi", "avx512_vbmi2", "gfni", "vaes", "vpclmulqdq",
                                   "avx512_vnni", "avx512_bitalg", "avx512_vpopcntdq"});
  std::vector<std::string> wanted;
  if (vbmi) wanted.emplace_back("avx512_vbmi");
  if (avx512) wanted.emplace_back("avx512");
  if (avx2) wanted.emplace_back("avx2");
  wanted.emplace_back("scalar");
  EXPECT_EQ(CpuTargets(), wanted);
#else
  GTEST_SKIP() << "only Linux on x86-64 lists them in this way";
#endif
}

}  // namespace
}  // namespace flashoptim

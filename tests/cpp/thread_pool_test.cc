// The pool of threads: every index once, nesting, concurrent callers, changes of the thread count,
// forked children.
#include <gtest/gtest.h>

#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <climits>
#include <cstdint>
#include <fstream>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "cases.h"
#include "cpu/thread_pool.h"
#include "flashoptim/plan.h"
#include "flashoptim/runtime.h"
#include "sanitizers.h"
#include "tensor_state.h"

namespace flashoptim {
namespace {

using testing::Shape;
using testing::StepCase;
using testing::TensorState;

constexpr Shape kSeveralChunks = {500, 130, 4};

TEST(ParallelFor, CallsEveryIndexOnce) {
  for (const int threads : {1, 2, 3, 8}) {
    SetCpuThreads(threads);
    for (const std::uint64_t count : {0U, 1U, 2U, 7U, 1000U}) {
      std::vector<std::atomic<int>> calls(count);
      auto body = [&](std::uint64_t i) { calls[i].fetch_add(1); };
      cpu::ParallelFor(count, body);
      for (const auto& call : calls) ASSERT_EQ(call.load(), 1);
    }
  }
}

TEST(ParallelFor, WhatABodyWroteIsThereAfterwards) {
  SetCpuThreads(4);
  std::vector<int> values(10000);
  for (int round = 1; round <= 50; ++round) {
    auto body = [&](std::uint64_t i) { values[i] += static_cast<int>(i); };
    cpu::ParallelFor(values.size(), body);
    for (std::size_t i = 0; i < values.size(); i += 97) {
      ASSERT_EQ(values[i], round * static_cast<int>(i));
    }
  }
}

TEST(ParallelFor, NestsInsideABody) {
  SetCpuThreads(3);
  std::atomic<std::uint64_t> calls{0};
  auto inner = [&](std::uint64_t) { calls.fetch_add(1); };
  auto outer = [&](std::uint64_t) { cpu::ParallelFor(10, inner); };
  cpu::ParallelFor(20, outer);
  EXPECT_EQ(calls.load(), 200U);
}

TEST(ParallelFor, RunsALoopInsideABodyOnItsThread) {
  SetCpuThreads(2);
  for (int round = 0; round < 100; ++round) {
    std::atomic<int> elsewhere{0};
    auto outer = [&](std::uint64_t) {
      const std::thread::id self = std::this_thread::get_id();
      auto inner = [&](std::uint64_t) { elsewhere += std::this_thread::get_id() != self ? 1 : 0; };
      cpu::ParallelFor(50, inner);
    };
    cpu::ParallelFor(4, outer);
    EXPECT_EQ(elsewhere.load(), 0);
  }
}

// A worker that wakes up late finds the loop over, or the next one begun.
TEST(ParallelFor, ManyShortLoopsInARow) {
  SetCpuThreads(4);
  for (std::uint64_t round = 0; round < 20000; ++round) {
    std::atomic<std::uint64_t> sum{0};
    auto body = [&](std::uint64_t i) { sum.fetch_add(round + i, std::memory_order_relaxed); };
    cpu::ParallelFor(3, body);
    ASSERT_EQ(sum.load(), 3 * round + 3);
  }
}

TEST(ParallelFor, ServesSeveralCallersAtOnce) {
  SetCpuThreads(3);
  std::atomic<std::uint64_t> calls{0};
  const auto caller = [&] {
    auto body = [&](std::uint64_t) { calls.fetch_add(1); };
    for (int i = 0; i < 200; ++i) cpu::ParallelFor(17, body);
  };
  std::vector<std::thread> callers;
  callers.reserve(4);
  for (int i = 0; i < 4; ++i) callers.emplace_back(caller);
  for (std::thread& thread : callers) thread.join();
  EXPECT_EQ(calls.load(), 4U * 200U * 17U);
}

TEST(ThreadCount, IsCheckedAndKept) {
  SetCpuThreads(5);
  EXPECT_EQ(CpuThreads(), 5);
  for (const int bad : {0, -3}) {
    try {
      SetCpuThreads(bad);
      FAIL() << bad << " threads were accepted";
    } catch (const std::invalid_argument& error) {
      EXPECT_NE(std::string(error.what()).find(std::to_string(bad)), std::string::npos);
    }
  }
  EXPECT_EQ(CpuThreads(), 5);
}

TEST(ThreadCount, ChangesBetweenLoopsAndUnderConcurrentLoops) {
  std::atomic<bool> stop{false};
  std::atomic<std::uint64_t> calls{0};
  std::thread other([&] {
    auto body = [&](std::uint64_t) { calls.fetch_add(1); };
    while (!stop.load()) cpu::ParallelFor(5, body);
  });
  auto body = [](std::uint64_t) {};
  for (int round = 0; round < 60; ++round) {
    SetCpuThreads(1 + round % 5);
    cpu::ParallelFor(50, body);
  }
  stop.store(true);
  other.join();
  EXPECT_EQ(calls.load() % 5, 0U);
}

StepCase ACase(std::size_t i) {
  const std::vector<StepCase> cases = testing::ThinCases();
  return cases[(i * 13) % cases.size()];
}

void TakeSteps(TensorState& tensor) {
  Plan plan = testing::PlanOf({&tensor});
  for (int step = 1; step <= tensor.shape().steps; ++step) {
    tensor.FillGradient(step);
    testing::SetGradients(plan, {&tensor});
    plan.Step();
  }
}

TEST(Plans, OnSeveralThreadsAtOnce) {
  SetCpuThreads(3);
  constexpr std::size_t kThreads = 4;
  std::vector<std::unique_ptr<TensorState>> alone;
  std::vector<std::unique_ptr<TensorState>> together;
  for (std::size_t i = 0; i < kThreads; ++i) {
    alone.push_back(std::make_unique<TensorState>(ACase(i), kSeveralChunks, i));
    together.push_back(std::make_unique<TensorState>(ACase(i), kSeveralChunks, i));
    TakeSteps(*alone[i]);
  }
  std::vector<std::thread> threads;
  for (std::size_t i = 0; i < kThreads; ++i) {
    threads.emplace_back([&, i] { TakeSteps(*together[i]); });
  }
  for (std::thread& thread : threads) thread.join();
  for (std::size_t i = 0; i < kThreads; ++i) {
    EXPECT_EQ(together[i]->DifferenceFrom(*alone[i]), "");
  }
}

constexpr unsigned kMostSeconds = 60;  // of a forked process; one that hangs fails the test

// Runs `child` in a forked process; what it returns is the exit status.
template <class Child>
int ExitStatusOfFork(const Child& child) {
  const pid_t pid = fork();
  if (pid == 0) {
    alarm(kMostSeconds);
    _exit(child());
  }
  int status = -1;
  waitpid(pid, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

TEST(Fork, AChildStepsWithThreadsOfItsOwn) {
  if (testing::kThreadSanitizer) {
    GTEST_SKIP() << "ThreadSanitizer ends a child of a process with threads when it starts one";
  }
  SetCpuThreads(3);
  TensorState parent(ACase(1), kSeveralChunks, 5);
  TakeSteps(parent);  // the parent's pool exists now
  const auto child = [&] {
    TensorState tensor(ACase(1), kSeveralChunks, 5);
    TakeSteps(tensor);
    return tensor.DifferenceFrom(parent).empty() ? 0 : 1;
  };
  for (int i = 0; i < 3; ++i) EXPECT_EQ(ExitStatusOfFork(child), 0);
  // A grandchild, and the parent afterwards.
  EXPECT_EQ(ExitStatusOfFork([&] { return child() + ExitStatusOfFork(child); }), 0);
  TensorState again(ACase(1), kSeveralChunks, 5);
  TakeSteps(again);
  EXPECT_EQ(again.DifferenceFrom(parent), "");
}

TEST(Fork, WhileAnotherThreadHasThePool) {
  if (testing::kSanitized) {
    GTEST_SKIP() << "sanitizers' allocators have locks that a child may find held";
  }
  SetCpuThreads(2);
  std::atomic<bool> stop{false};
  std::thread other([&] {
    auto body = [](std::uint64_t) {};
    while (!stop.load()) cpu::ParallelFor(100, body);
  });
  for (int i = 0; i < 10; ++i) {
    const int status = ExitStatusOfFork([] {
      std::atomic<int> calls{0};
      auto body = [&](std::uint64_t) { calls.fetch_add(1); };
      cpu::ParallelFor(100, body);
      return calls.load() == 100 ? 0 : 1;
    });
    EXPECT_EQ(status, 0);
  }
  stop.store(true);
  other.join();
}

// Each child uses the pool for the first time, in two threads at once, and forks in between.
TEST(Fork, WhileAnotherThreadUsesThePoolForTheFirstTime) {
  if (testing::kSanitized) {
    GTEST_SKIP() << "sanitizers' allocators have locks that a child may find held";
  }
  const StepCase step_case = ACase(1);
  const auto step = [&] {
    TensorState tensor(step_case, kSeveralChunks, 1);
    TakeSteps(tensor);
  };
  for (int i = 0; i < 100; ++i) {
    const int status = ExitStatusOfFork([&] {
      std::atomic<bool> started{false};
      std::thread other([&] {
        started.store(true);
        step();
      });
      while (!started.load()) continue;
      const int of_grandchild = ExitStatusOfFork([&] {
        step();
        return 0;
      });
      other.join();
      return of_grandchild;
    });
    ASSERT_EQ(status, 0);
  }
}

// Leaves room for the stacks of a few threads only.
bool LimitAddressSpace(std::uint64_t more) {
  std::uint64_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages;
  const auto size = static_cast<rlim_t>(pages * static_cast<std::uint64_t>(sysconf(_SC_PAGESIZE)));
  const rlimit limit = {size + more, size + more};
  return pages != 0 && setrlimit(RLIMIT_AS, &limit) == 0;
}

TEST(Fork, AChildThatGetsNoMoreThreadsRunsWithFewer) {
  if (testing::kSanitized) GTEST_SKIP() << "sanitizers need the address space";
  // For so many as the largest number says there is not even memory for a list of them.
  for (const int threads : {200, INT_MAX}) {
    const int status = ExitStatusOfFork([threads] {
      if (!LimitAddressSpace(40U << 20U)) return 2;
      for (int round = 0; round < 3; ++round) {
        SetCpuThreads(round == 0 ? 2 : threads);
        std::atomic<int> calls{0};
        auto body = [&](std::uint64_t) { calls.fetch_add(1); };
        cpu::ParallelFor(1000, body);
        if (calls.load() != 1000) return 1;
      }
      return 0;
    });
    EXPECT_EQ(status, 0) << threads;
  }
}

}  // namespace
}  // namespace flashoptim

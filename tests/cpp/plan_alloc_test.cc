// A step allocates nothing: this program counts every allocation, those of malloc included.
#include <gtest/gtest.h>

#include <atomic>
#include <cstddef>
#include <cstdlib>
#include <memory>
#include <new>
#include <vector>

#include "cases.h"
#include "flashoptim/plan.h"
#include "flashoptim/runtime.h"
#include "sanitizers.h"
#include "tensor_state.h"

namespace {

std::atomic<std::uint64_t> allocations{0};

}  // namespace

// Sanitizers replace the allocator themselves.
#if defined(FLASHOPTIM_ASAN) || defined(FLASHOPTIM_TSAN)
constexpr bool kCounting = false;
#elif defined(__GLIBC__)
constexpr bool kCounting = true;

// glibc's own names for its allocator; operator new calls malloc, and so is counted too.
extern "C" {
void* __libc_malloc(std::size_t size);                           // NOLINT
void* __libc_calloc(std::size_t count, std::size_t size);        // NOLINT
void* __libc_realloc(void* p, std::size_t size);                 // NOLINT
void* __libc_memalign(std::size_t alignment, std::size_t size);  // NOLINT

void* malloc(std::size_t size) {
  allocations.fetch_add(1, std::memory_order_relaxed);
  return __libc_malloc(size);
}
void* calloc(std::size_t nmemb, std::size_t size) {
  allocations.fetch_add(1, std::memory_order_relaxed);
  return __libc_calloc(nmemb, size);
}
void* realloc(void* ptr, std::size_t size) {
  allocations.fetch_add(1, std::memory_order_relaxed);
  return __libc_realloc(ptr, size);
}
void* aligned_alloc(std::size_t alignment, std::size_t size) {
  allocations.fetch_add(1, std::memory_order_relaxed);
  return __libc_memalign(alignment, size);
}
}

#else
constexpr bool kCounting = true;

void* operator new(std::size_t size) {
  allocations.fetch_add(1, std::memory_order_relaxed);
  if (void* p = std::malloc(size)) return p;
  throw std::bad_alloc();
}
void operator delete(void* p) noexcept { std::free(p); }
void operator delete(void* p, std::size_t) noexcept { std::free(p); }

#endif

namespace flashoptim {
namespace {

using testing::Shape;
using testing::StepCase;
using testing::TensorState;

class Allocations : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!kCounting) GTEST_SKIP() << "the sanitizer has replaced the allocator";
  }
};

TEST_F(Allocations, AreCounted) {
  const std::uint64_t before = allocations.load();
  const auto number = std::make_unique<std::vector<int>>(100);
  EXPECT_GE(allocations.load() - before, 2U);
  EXPECT_EQ(number->size(), 100U);
}

void ExpectNoAllocations(const StepCase& step_case, Nonfinite policy) {
  std::vector<std::unique_ptr<TensorState>> tensors;
  std::vector<TensorState*> pointers;
  for (const Shape& shape : {Shape{300, 70, 0}, Shape{1, 5, 0}, Shape{0, 0, 0}, Shape{2, 64, 0}}) {
    tensors.push_back(std::make_unique<TensorState>(step_case, shape, tensors.size()));
    pointers.push_back(tensors.back().get());
    pointers.back()->FillGradient(1);
  }
  Plan plan = testing::PlanOf(pointers);
  Hyperparameters hyper = step_case.rule.hyper;
  hyper.nonfinite = policy;
  plan.SetHyperparameters(0, hyper);
  testing::SetGradients(plan, pointers);
  plan.Step();  // the first one may start threads
  const std::uint64_t before = allocations.load();
  for (int step = 2; step <= 101; ++step) {
    hyper.lr *= 0.999;
    plan.SetHyperparameters(0, hyper);
    for (std::size_t i = 0; i < pointers.size(); ++i) {
      plan.SetGradient(i, pointers[i]->CurrentGradient());
    }
    plan.Step();
  }
  EXPECT_EQ(allocations.load() - before, 0U) << step_case.Name();
}

TEST_F(Allocations, AHundredStepsMakeNone) {
  for (const int threads : {1, 3}) {
    SetCpuThreads(threads);
    std::size_t turn = 0;
    for (const StepCase& step_case : testing::ThinCases()) {
      if (turn++ % 17 != 0) continue;
      ExpectNoAllocations(step_case, Nonfinite::kPropagate);
      ExpectNoAllocations(step_case, Nonfinite::kSkip);
    }
  }
}

TEST_F(Allocations, NoTargetMakesAny) {
  SetCpuThreads(2);
  for (const std::string& target : CpuTargets()) {
    SetCpuTarget(target);
    ExpectNoAllocations(testing::ThinCases()[5], Nonfinite::kPropagate);
  }
}

}  // namespace
}  // namespace flashoptim

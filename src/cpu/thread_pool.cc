#include "cpu/thread_pool.h"

#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <mutex>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "cpu/float_environment.h"

namespace flashoptim::cpu {
namespace {

// Polls before a thread goes to sleep: about 20 microseconds, less than a wake-up costs.
constexpr int kSpins = 2000;

void Relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

// Returns when `value` differs from `old`.
std::uint32_t AwaitChange(const std::atomic<std::uint32_t>& value, std::uint32_t old) {
  for (int spin = 0; spin < kSpins; ++spin) {
    const std::uint32_t now = value.load(std::memory_order_acquire);
    if (now != old) return now;
    Relax();
  }
  value.wait(old, std::memory_order_acquire);
  return value.load(std::memory_order_acquire);
}

class Pool {
 public:
  explicit Pool(int workers) {
    threads_.reserve(static_cast<std::size_t>(workers));
    for (int i = 0; i < workers; ++i) threads_.emplace_back([this] { Work(); });
  }

  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;

  ~Pool() {
    stop_.store(true, std::memory_order_relaxed);
    epoch_.fetch_add(1, std::memory_order_release);
    epoch_.notify_all();
    for (std::thread& thread : threads_) thread.join();
  }

  int workers() const { return static_cast<int>(threads_.size()); }

  void Run(std::uint64_t count, void (*body)(void*, std::uint64_t), void* context) {
    count_ = count;
    body_ = body;
    context_ = context;
    next_.store(0, std::memory_order_relaxed);
    busy_.store(static_cast<std::uint32_t>(threads_.size()), std::memory_order_relaxed);
    epoch_.fetch_add(1, std::memory_order_release);
    epoch_.notify_all();
    Drain();
    for (std::uint32_t busy = busy_.load(std::memory_order_acquire); busy != 0;) {
      busy = AwaitChange(busy_, busy);
    }
  }

 private:
  void Drain() {
    const DefaultFloatEnvironment environment;
    for (;;) {
      const std::uint64_t i = next_.fetch_add(1, std::memory_order_relaxed);
      if (i >= count_) return;
      body_(context_, i);
    }
  }

  void Work() {
    std::uint32_t epoch = 0;
    for (;;) {
      epoch = AwaitChange(epoch_, epoch);
      if (stop_.load(std::memory_order_relaxed)) return;
      Drain();
      busy_.fetch_sub(1, std::memory_order_release);
      busy_.notify_one();
    }
  }

  std::uint64_t count_ = 0;
  void (*body_)(void*, std::uint64_t) = nullptr;
  void* context_ = nullptr;
  alignas(64) std::atomic<std::uint64_t> next_ = 0;
  alignas(64) std::atomic<std::uint32_t> epoch_ = 0;
  alignas(64) std::atomic<std::uint32_t> busy_ = 0;
  std::atomic<bool> stop_ = false;
  std::vector<std::thread> threads_;
};

// The pool and the lock that a loop holds while it uses it. A forked child has neither the threads
// nor a lock in a known state: it abandons both and makes its own.
struct Shared {
  std::mutex mutex;
  Pool* pool = nullptr;
};

std::atomic<Shared*>& SharedSlot() {
  static std::atomic<Shared*> slot = [] {
    pthread_atfork(nullptr, nullptr, [] { SharedSlot().store(new Shared); });
    return new Shared;
  }();
  return slot;
}

std::atomic<int>& CountSlot() {
  static std::atomic<int> count =
      static_cast<int>(std::max(1U, std::thread::hardware_concurrency()));
  return count;
}

}  // namespace

int ThreadCount() { return CountSlot().load(std::memory_order_relaxed); }

void SetThreadCount(int count) {
  if (count < 1) {
    throw std::invalid_argument("thread count must be at least 1, not " + std::to_string(count));
  }
  CountSlot().store(count, std::memory_order_relaxed);
}

void ParallelFor(std::uint64_t count, void (*body)(void* context, std::uint64_t i), void* context) {
  const int workers = ThreadCount() - 1;
  Shared& shared = *SharedSlot().load();
  std::unique_lock<std::mutex> lock(shared.mutex, std::defer_lock);
  if (count <= 1 || workers == 0 || !lock.try_lock()) {
    const DefaultFloatEnvironment environment;
    for (std::uint64_t i = 0; i < count; ++i) body(context, i);
    return;
  }
  if (shared.pool == nullptr || shared.pool->workers() != workers) {
    delete shared.pool;
    shared.pool = new Pool(workers);
  }
  shared.pool->Run(count, body, context);
}

}  // namespace flashoptim::cpu

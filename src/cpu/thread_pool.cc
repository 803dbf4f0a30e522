#include "cpu/thread_pool.h"

#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <mutex>
#include <new>
#include <stdexcept>
#include <string>
#include <system_error>
#include <thread>
#include <utility>
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

// Whether this thread runs a body of the pool's loop.
thread_local bool inside_loop = false;

class Pool {
 public:
  // With fewer workers where the system gives no more threads, or no memory for them.
  explicit Pool(int workers) : wanted_(workers) {
    // The caller does what no worker does.
    try {
      for (int i = 0; i < workers; ++i) threads_.emplace_back([this] { Work(); });
    } catch (const std::system_error&) {
    } catch (const std::bad_alloc&) {
    }
  }

  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;

  ~Pool() {
    stop_.store(true, std::memory_order_relaxed);
    epoch_.fetch_add(1, std::memory_order_release);
    epoch_.notify_all();
    for (std::thread& thread : threads_) thread.join();
  }

  int wanted() const { return wanted_; }

  void Run(std::uint64_t count, void (*body)(void*, std::uint64_t), void* context) {
    count_ = count;
    body_ = body;
    context_ = context;
    next_.store(0, std::memory_order_relaxed);
    gate_.store(kOpen, std::memory_order_release);
    epoch_.fetch_add(1, std::memory_order_release);
    epoch_.notify_all();
    Drain();
    // Who comes after this finds the gate closed; only those inside have to be waited for.
    std::uint32_t inside = gate_.fetch_and(~kOpen, std::memory_order_acquire) & ~kOpen;
    while (inside != 0) inside = AwaitChange(gate_, inside);
  }

 private:
  static constexpr std::uint32_t kOpen = 1U << 31;

  // Whether there is a loop to join. Until Leave, its fields stay as they are.
  bool Enter() {
    std::uint32_t gate = gate_.load(std::memory_order_relaxed);
    while ((gate & kOpen) != 0) {
      if (gate_.compare_exchange_weak(gate, gate + 1, std::memory_order_acquire,
                                      std::memory_order_relaxed)) {
        return true;
      }
    }
    return false;
  }

  void Leave() {
    if (gate_.fetch_sub(1, std::memory_order_release) == 1) gate_.notify_one();
  }

  void Drain() {
    const DefaultFloatEnvironment environment;
    inside_loop = true;
    for (;;) {
      const std::uint64_t i = next_.fetch_add(1, std::memory_order_relaxed);
      if (i >= count_) break;
      body_(context_, i);
    }
    inside_loop = false;
  }

  void Work() {
    std::uint32_t epoch = 0;
    for (;;) {
      epoch = AwaitChange(epoch_, epoch);
      if (stop_.load(std::memory_order_relaxed)) return;
      if (!Enter()) continue;
      Drain();
      Leave();
    }
  }

  int wanted_;
  std::uint64_t count_ = 0;
  void (*body_)(void*, std::uint64_t) = nullptr;
  void* context_ = nullptr;
  alignas(64) std::atomic<std::uint64_t> next_ = 0;
  alignas(64) std::atomic<std::uint32_t> epoch_ = 0;
  alignas(64) std::atomic<std::uint32_t> gate_ = 0;  // kOpen, and the number of workers inside
  std::atomic<bool> stop_ = false;
  std::vector<std::thread> threads_;
};

// The pool and the lock that a loop holds while it uses it. A forked child has neither the threads
// nor a lock in a known state: it abandons both and makes its own.
struct Shared {
  std::mutex mutex;
  Pool* pool = nullptr;
};

constinit Shared of_first_process;
constinit std::atomic<Shared*> of_this_process = &of_first_process;

// At loading, so that no fork can come between.
[[maybe_unused]] const int registered =
    pthread_atfork(nullptr, nullptr, [] { of_this_process.store(new Shared); });

constinit std::atomic<int> thread_count = 0;  // 0: not asked for yet

}  // namespace

int ThreadCount() {
  int count = thread_count.load(std::memory_order_relaxed);
  if (count == 0) {
    const int found = static_cast<int>(std::max(1U, std::thread::hardware_concurrency()));
    if (thread_count.compare_exchange_strong(count, found, std::memory_order_relaxed))
      count = found;
  }
  return count;
}

void SetThreadCount(int count) {
  if (count < 1) {
    throw std::invalid_argument("thread count must be at least 1, not " + std::to_string(count));
  }
  thread_count.store(count, std::memory_order_relaxed);
}

void ParallelFor(std::uint64_t count, void (*body)(void* context, std::uint64_t i), void* context) {
  const int workers = ThreadCount() - 1;
  Shared& shared = *of_this_process.load();
  std::unique_lock<std::mutex> lock(shared.mutex, std::defer_lock);
  // A thread that holds a mutex must not try to lock it again.
  if (count <= 1 || workers == 0 || inside_loop || !lock.try_lock()) {
    const DefaultFloatEnvironment environment;
    for (std::uint64_t i = 0; i < count; ++i) body(context, i);
    return;
  }
  if (shared.pool == nullptr || shared.pool->wanted() != workers) {
    delete std::exchange(shared.pool, nullptr);  // there may be no memory for the next
    shared.pool = new Pool(workers);
  }
  shared.pool->Run(count, body, context);
}

}  // namespace flashoptim::cpu

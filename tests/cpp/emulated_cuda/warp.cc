#include "warp.h"

#include <cuda_runtime.h>
#include <ucontext.h>

#include <memory>
#include <stdexcept>

namespace flashoptim::emulated_cuda {
namespace {

// Room for a kernel's parameters, of which each thread has a copy, with what sanitizers add.
constexpr std::size_t kStackSize = std::size_t{1} << 18;
constexpr unsigned kFullMask = 0xffffffffU;

struct Lane {
  std::unique_ptr<std::byte[]> stack = std::make_unique<std::byte[]>(kStackSize);
  ucontext_t context = {};
  bool running = false;
  unsigned mask = 0;
  std::uint32_t operation = 0;
  std::uint32_t word = 0;

  // Lets the next change to `context` begin `run`, after which `then` goes on.
  void Prepare(void (*run)(), ucontext_t* then) {
    getcontext(&context);
    context.uc_stack.ss_sp = stack.get();
    context.uc_stack.ss_size = kStackSize;
    context.uc_link = then;
    makecontext(&context, run, 0);
    running = true;
  }
};

class Warp {
 public:
  // Runs all lanes from one exchange to the next until they have returned.
  void Run(unsigned first_thread, const std::function<void()>& thread) {
    thread_ = &thread;
    for (Lane& lane : lanes_) lane.Prepare(&Warp::RunCurrentLane, &scheduler_);
    do {
      for (unsigned i = 0; i < kLanes; ++i) {
        threadIdx.x = first_thread + i;
        current_ = &lanes_[i];
        swapcontext(&scheduler_, &lanes_[i].context);
      }
      CheckThatLanesAgree();
      for (unsigned i = 0; i < kLanes; ++i) words_[i] = lanes_[i].word;
      if (lanes_[0].running) ++exchanges_;
    } while (lanes_[0].running);
  }

  const Words& Exchange(unsigned mask, std::uint32_t operation, std::uint32_t word) {
    current_->mask = mask;
    current_->operation = operation;
    current_->word = word;
    swapcontext(&current_->context, &scheduler_);
    return words_;
  }

  std::uint64_t exchanges() const { return exchanges_; }

  static Warp& Only() {
    static Warp warp;
    return warp;
  }

 private:
  static void RunCurrentLane() {
    (*Only().thread_)();
    Only().current_->running = false;
  }

  void CheckThatLanesAgree() const {
    const Lane& first = lanes_[0];
    for (const Lane& lane : lanes_) {
      if (lane.running != first.running) {
        throw std::logic_error("some lanes of a warp have returned while others exchange values");
      }
      if (lane.running && (lane.operation != first.operation || lane.mask != kFullMask)) {
        throw std::logic_error("the lanes of a warp are at different exchanges");
      }
    }
  }

  std::array<Lane, kLanes> lanes_;
  Words words_ = {};
  std::uint64_t exchanges_ = 0;
  ucontext_t scheduler_ = {};
  Lane* current_ = nullptr;
  const std::function<void()>* thread_ = nullptr;
};

std::vector<const void*>& Log() {
  static std::vector<const void*> kernels;
  return kernels;
}

}  // namespace

void Launch(const void* kernel, unsigned blocks, unsigned threads,
            const std::function<void()>& thread) {
  if (blocks == 0 || threads == 0 || threads % kLanes != 0) {
    throw std::logic_error("a launch needs blocks of whole warps");
  }
  Log().push_back(kernel);
  for (blockIdx.x = 0; blockIdx.x < blocks; ++blockIdx.x) {
    for (unsigned first = 0; first < threads; first += kLanes) Warp::Only().Run(first, thread);
  }
}

const Words& Exchange(unsigned mask, std::uint32_t operation, std::uint32_t word) {
  return Warp::Only().Exchange(mask, operation, word);
}

const std::vector<const void*>& Launched() { return Log(); }

std::uint64_t Exchanges() { return Warp::Only().exchanges(); }

}  // namespace flashoptim::emulated_cuda

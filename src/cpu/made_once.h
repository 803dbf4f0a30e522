// What is made at its first use and stays.
#ifndef FLASHOPTIM_CPU_MADE_ONCE_H_
#define FLASHOPTIM_CPU_MADE_ONCE_H_

#include <atomic>
#include <memory>

namespace flashoptim::cpu {

/// What `make` returned at the first call. Threads that come first together each make one, and one
/// of these stays: a function's own static variable would have them wait for each other, and in a
/// child that was forked meanwhile for ever.
template <auto make>
const auto& MadeOnce() {
  using Made = decltype(make());
  static constinit std::atomic<const Made*> slot = nullptr;
  const Made* made = slot.load(std::memory_order_acquire);
  if (made == nullptr) {
    auto fresh = std::make_unique<const Made>(make());
    if (slot.compare_exchange_strong(made, fresh.get(), std::memory_order_acq_rel)) {
      made = fresh.release();
    }
  }
  return *made;
}

}  // namespace flashoptim::cpu

#endif  // FLASHOPTIM_CPU_MADE_ONCE_H_

// A pool of threads for one parallel loop at a time.
#ifndef FLASHOPTIM_CPU_THREAD_POOL_H_
#define FLASHOPTIM_CPU_THREAD_POOL_H_

#include <cstdint>

namespace flashoptim::cpu {

/// Number of threads that ParallelFor uses, the caller included. Starts as the number of
/// processors.
int ThreadCount();

/// Sets it; throws std::invalid_argument below 1.
void SetThreadCount(int count);

/// Calls body(context, i) once for every i below `count`, on the caller and the pool's threads, in
/// no particular order, and returns when all calls have returned. Allocates nothing once the
/// threads exist; makes do with fewer threads where the system gives no more. While another
/// thread's loop has the pool, and inside a body, the caller runs its loop alone. Every call sees
/// the default floating-point environment: nearest rounding, subnormals kept. `body` must not
/// throw.
void ParallelFor(std::uint64_t count, void (*body)(void* context, std::uint64_t i), void* context);

/// The same for a callable.
template <class Body>
void ParallelFor(std::uint64_t count, Body& body) {
  ParallelFor(
      count, [](void* context, std::uint64_t i) { (*static_cast<Body*>(context))(i); }, &body);
}

}  // namespace flashoptim::cpu

#endif  // FLASHOPTIM_CPU_THREAD_POOL_H_

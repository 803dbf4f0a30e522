// Counts every allocation of a test program, those of malloc included, by taking the place of the
// allocator: include it in one file of the program only.
#ifndef FLASHOPTIM_TESTS_COUNT_ALLOCATIONS_H_
#define FLASHOPTIM_TESTS_COUNT_ALLOCATIONS_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <new>

#include "sanitizers.h"

// NOLINTBEGIN(misc-definitions-in-headers): one file of a program includes this
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
// NOLINTEND(misc-definitions-in-headers)

#endif  // FLASHOPTIM_TESTS_COUNT_ALLOCATIONS_H_

// Which sanitizer this build runs under.
#ifndef FLASHOPTIM_TESTS_SANITIZERS_H_
#define FLASHOPTIM_TESTS_SANITIZERS_H_

#if defined(__has_feature)
#if __has_feature(address_sanitizer)
#define FLASHOPTIM_ASAN 1
#endif
#if __has_feature(thread_sanitizer)
#define FLASHOPTIM_TSAN 1
#endif
#endif
#if defined(__SANITIZE_ADDRESS__)
#define FLASHOPTIM_ASAN 1
#endif
#if defined(__SANITIZE_THREAD__)
#define FLASHOPTIM_TSAN 1
#endif

namespace flashoptim::testing {

#if defined(FLASHOPTIM_ASAN)
inline constexpr bool kAddressSanitizer = true;
#else
inline constexpr bool kAddressSanitizer = false;
#endif
#if defined(FLASHOPTIM_TSAN)
inline constexpr bool kThreadSanitizer = true;
#else
inline constexpr bool kThreadSanitizer = false;
#endif
inline constexpr bool kSanitized = kAddressSanitizer || kThreadSanitizer;

}  // namespace flashoptim::testing

#endif  // FLASHOPTIM_TESTS_SANITIZERS_H_

// The floating-point environment that docs/format.md asks for, for the length of a scope.
#ifndef FLASHOPTIM_CPU_FLOAT_ENVIRONMENT_H_
#define FLASHOPTIM_CPU_FLOAT_ENVIRONMENT_H_

#if defined(__x86_64__)
#include <xmmintrin.h>
#else
#include <cfenv>
#endif

namespace flashoptim::cpu {

/// Nearest rounding, subnormals kept, exceptions masked; the caller's environment comes back at the
/// end. A caller may have asked for flush-to-zero (torch.set_flush_denormal), which must not change
/// bits.
class DefaultFloatEnvironment {
 public:
  DefaultFloatEnvironment(const DefaultFloatEnvironment&) = delete;
  DefaultFloatEnvironment& operator=(const DefaultFloatEnvironment&) = delete;

#if defined(__x86_64__)
  DefaultFloatEnvironment() : saved_(_mm_getcsr()) { _mm_setcsr(0x1f80U); }
  ~DefaultFloatEnvironment() { _mm_setcsr(saved_); }

 private:
  unsigned saved_;
#else
  DefaultFloatEnvironment() {
    std::fegetenv(&saved_);
    std::fesetenv(FE_DFL_ENV);
  }
  ~DefaultFloatEnvironment() { std::fesetenv(&saved_); }

 private:
  std::fenv_t saved_;
#endif
};

}  // namespace flashoptim::cpu

#endif  // FLASHOPTIM_CPU_FLOAT_ENVIRONMENT_H_

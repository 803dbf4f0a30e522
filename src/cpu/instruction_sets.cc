#include "cpu/instruction_sets.h"

#include <cstdint>

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace flashoptim::cpu {
namespace {

struct Registers {
  unsigned a = 0;
  unsigned b = 0;
  unsigned c = 0;
  unsigned d = 0;
};

// Zeros where there is no such leaf: then nothing that it would tell of is there.
Registers CpuId([[maybe_unused]] unsigned leaf) {
  Registers r;
#if defined(__x86_64__)
  if (__get_cpuid_count(leaf, 0, &r.a, &r.b, &r.c, &r.d) == 0) return {};
#endif
  return r;
}

// The registers that the operating system saves; may be asked only where it says that it does.
std::uint64_t SavedRegisters() {
#if defined(__x86_64__)
  std::uint32_t low = 0;
  std::uint32_t high = 0;
  __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return (std::uint64_t{high} << 32) | low;
#else
  return 0;
#endif
}

template <class... Bits>
constexpr unsigned Mask(Bits... bits) {
  return ((1U << bits) | ...);
}

constexpr bool HasAll(std::uint64_t value, std::uint64_t mask) { return (value & mask) == mask; }

bool Saves(std::uint64_t registers) {
  constexpr unsigned kOsxsave = 27;
  return HasAll(CpuId(1).c, Mask(kOsxsave)) && HasAll(SavedRegisters(), registers);
}

}  // namespace

bool HasAvx2() {
  // pclmulqdq, ssse3, fma, sse4.1, sse4.2, popcnt, aes, avx, f16c; then bmi, avx2, bmi2.
  return HasAll(CpuId(1).c, Mask(1, 9, 12, 19, 20, 23, 25, 28, 29)) &&
         HasAll(CpuId(7).b, Mask(3, 5, 8)) && Saves(Mask(1, 2));
}

bool HasAvx512() {
  // avx512f, avx512dq, avx512cd, avx512bw, avx512vl; mask registers, both halves of wide ones.
  return HasAvx2() && HasAll(CpuId(7).b, Mask(16, 17, 28, 30, 31)) && Saves(Mask(5, 6, 7));
}

bool HasAvx512Vbmi() {
  // avx512_vbmi, _vbmi2, gfni, vaes, vpclmulqdq, avx512_vnni, _bitalg, _vpopcntdq.
  return HasAvx512() && HasAll(CpuId(7).c, Mask(1, 6, 8, 9, 10, 11, 12, 14));
}

}  // namespace flashoptim::cpu

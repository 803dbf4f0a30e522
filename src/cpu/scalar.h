// The formulas on lanes of one float: the reference, and the host's own use of the random stream.
#ifndef FLASHOPTIM_CPU_SCALAR_H_
#define FLASHOPTIM_CPU_SCALAR_H_

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>

#include "flashoptim/types.h"

namespace flashoptim::scalar {

using std::sqrt;

#define FLASHOPTIM_FN inline
#include "core/formulas-inl.h"
#undef FLASHOPTIM_FN

struct Lanes {
  using F = float;
  using U = uint32_t;
  using M = bool;

  static F Set(float x) { return x; }
  static U SetU(uint32_t x) { return x; }
  static U Bits(F x) { return std::bit_cast<uint32_t>(x); }
  static F AsFloat(U x) { return std::bit_cast<float>(x); }

  static U Add(U a, U b) { return a + b; }
  static U Sub(U a, U b) { return a - b; }
  static U And(U a, U b) { return a & b; }
  static U AndNot(U a, U b) { return ~a & b; }
  static U Or(U a, U b) { return a | b; }
  static U Xor(U a, U b) { return a ^ b; }
  static U OrAnd(U a, U b, U c) { return a | (b & c); }
  template <int k>
  static U Shl(U x) {
    return x << k;
  }
  template <int k>
  static U Shr(U x) {
    return x >> k;
  }
  static U MulU(U a, U b) { return a * b; }
  static U MinU(U a, U b) { return std::min(a, b); }
  static U MaxU(U a, U b) { return std::max(a, b); }

  static F AddF(F a, F b) { return a + b; }
  static F SubF(F a, F b) { return a - b; }
  static F Mul(F a, F b) { return a * b; }
  static F Div(F a, F b) { return a / b; }
  static F Fma(F a, F b, F c) { return std::fma(a, b, c); }
  static F Fms(F a, F b, F c) { return std::fma(a, b, -c); }
  static F Sqrt(F x) { return std::sqrt(x); }
  static F Reciprocal(F x) { return 1.0F / x; }
  static F MaxF(F a, F b) { return std::max(a, b); }

  static M Less(F a, F b) { return a < b; }
  static M LessU(U a, U b) { return a < b; }
  static F Select(M m, F a, F b) { return m ? a : b; }
  static U SelectU(M m, U a, U b) { return m ? a : b; }
};

}  // namespace flashoptim::scalar

#endif  // FLASHOPTIM_CPU_SCALAR_H_

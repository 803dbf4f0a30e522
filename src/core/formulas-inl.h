// The formulas of docs/format.md, each written once. A target (scalar, one SIMD instruction set,
// CUDA) defines FLASHOPTIM_FN, the qualifiers of its functions, and includes this file *inside its
// own namespace*, so that every target compiles its own copy with its own instructions; hence no
// include guard.
//
// Every formula is a template over a lane set `L`, which offers
//   F, U, M                         floats, unsigned 32-bit integers and a condition, lane by lane
//   Set(float) SetU(uint32_t)       broadcast
//   Bits(F) AsFloat(U)              images
//   Add Sub And Or Xor AndNot(U, U) AndNot(a, b) is ~a & b
//   OrAnd(a, b, c)                  a | (b & c)
//   Shl<k>(U) Shr<k>(U) MulU(U, U)  shifts are logical, products keep the low word
//   MinU MaxU(U, U)
//   AddF SubF Mul Div(F, F)         correctly rounded
//   Fma(a, b, c) Fms(a, b, c)       a * b + c and a * b - c, rounded once
//   Sqrt(F) Reciprocal(F)           correctly rounded for arguments in [2^-126, 2^126]
//   MaxF(F, F)                      of two numbers
//   Less(F, F) LessU(U, U)          conditions
//   Select(M, F, F) SelectU(M, U, U)
//
// Each header needs those before it.
// clang-format off
#include "core/constants-inl.h"
#include "core/random-inl.h"
#include "core/weight_split-inl.h"
#include "core/codec_none-inl.h"
#include "core/codec_root-inl.h"
#include "core/codec_softsign-inl.h"
#include "core/rules-inl.h"
#include "core/step_scalars-inl.h"
// clang-format on

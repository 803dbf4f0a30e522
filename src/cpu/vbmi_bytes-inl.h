// Bytes to vectors and back with AVX512-VBMI. Included by cpu/vbmi.cc inside the namespace of its
// target.
//
// A group is one vector of bytes, or four of 32-bit lanes: element 16 * j + i is in lane i of
// vector j. One permutation of two vectors moves 64 bytes anywhere, where shifts and masks take
// several operations.

using Vector = __m512i;
using GroupU = Lanes::U[4];
using GroupF = Lanes::F[4];

// What a permutation makes of its sources: byte i of the result is byte index_of(i), those of the
// second source follow those of the first.
struct alignas(64) ByteIndices {
  uint8_t values[64];
  HWY_INLINE Vector Load() const { return _mm512_load_si512(values); }
};
template <class F>
constexpr ByteIndices MakeIndices(F index_of) {
  ByteIndices indices{};
  for (unsigned i = 0; i < 64; ++i) indices.values[i] = static_cast<uint8_t>(index_of(i));
  return indices;
}

// The element of byte i of vector j.
constexpr unsigned ElementOf(unsigned j, unsigned i) { return 16 * j + i / 4; }

// Two planes of 64 bytes: byte 2 and byte 3 of each lane.
constexpr ByteIndices PlanesIndices(unsigned j) {
  return MakeIndices([=](unsigned i) { return ElementOf(j, i) + (i % 4 == 3 ? 64 : 0); });
}
constexpr ByteIndices kPlanes[4] = {PlanesIndices(0), PlanesIndices(1), PlanesIndices(2),
                                    PlanesIndices(3)};

// 32 16-bit elements: bytes 2 and 3 of each lane.
constexpr ByteIndices HalvesIndices(unsigned j) {
  return MakeIndices([=](unsigned i) { return 2 * (ElementOf(j, i) % 32) + i % 2; });
}
constexpr ByteIndices kHalves[2] = {HalvesIndices(0), HalvesIndices(1)};

// 32 16-bit elements and 64 bytes: bytes 2 and 3 of each lane, and byte 1.
constexpr ByteIndices HalvesAndBytesIndices(unsigned j) {
  return MakeIndices([=](unsigned i) {
    const unsigned element = ElementOf(j, i);
    return i % 4 == 1 ? 64 + element : 2 * (element % 32) + i % 2;
  });
}
constexpr ByteIndices kHalvesAndBytes[4] = {HalvesAndBytesIndices(0), HalvesAndBytesIndices(1),
                                            HalvesAndBytesIndices(2), HalvesAndBytesIndices(3)};

// Two times 32 16-bit elements: bytes 2 and 3 of each lane, and bytes 0 and 1.
constexpr ByteIndices PairsOfHalvesIndices(unsigned j) {
  return MakeIndices(
      [=](unsigned i) { return 2 * (ElementOf(j, i) % 32) + i % 2 + (i % 4 < 2 ? 64 : 0); });
}
constexpr ByteIndices kPairsOfHalves[2] = {PairsOfHalvesIndices(0), PairsOfHalvesIndices(1)};

// The inverses: byte `byte` of each lane of two vectors, twice; bytes 2 and 3 of each lane.
constexpr ByteIndices PackIndices(unsigned byte) {
  return MakeIndices([=](unsigned i) { return 4 * (i % 32) + byte; });
}
constexpr ByteIndices kPack[2] = {PackIndices(0), PackIndices(1)};
constexpr ByteIndices kPackHalves = MakeIndices([](unsigned i) { return 4 * (i / 2) + 2 + i % 2; });
constexpr ByteIndices kPackLowHalves = MakeIndices([](unsigned i) { return 4 * (i / 2) + i % 2; });

// Hides from the compiler what a value is, so that it stays in a register: g++ would make constants
// again at every use, clang++ would turn masks into longer sequences on vectors.
HWY_INLINE __mmask64 Opaque(__mmask64 mask) {
  asm("" : "+Yk"(mask));
  return mask;
}
HWY_INLINE Vector Opaque(Vector x) {
  asm("" : "+v"(x));
  return x;
}

// What the loop over groups keeps in registers.
struct Constants {
  __mmask64 upper_bytes = Opaque(__mmask64{0xccccccccccccccccU});  // bytes 2 and 3 of each lane
  __mmask64 all_but_byte_0 = Opaque(__mmask64{0xeeeeeeeeeeeeeeeeU});
  __mmask64 lower_half = Opaque(__mmask64{0x00000000ffffffffU});
  __mmask64 upper_half = Opaque(__mmask64{0xffffffff00000000U});
  Vector one = Opaque(_mm512_set1_epi16(1));
  // An implicit constructor would not get the target's instructions.
  HWY_INLINE Constants() {}  // NOLINT(modernize-use-equals-default)
};

HWY_INLINE Vector LoadBytes(const void* p) { return _mm512_loadu_si512(p); }
HWY_INLINE void StoreBytes(Vector bytes, void* p) { _mm512_storeu_si512(p, bytes); }

HWY_INLINE Lanes::U JoinPlanes(const Constants& constants, Vector low, Vector high, int j) {
  return Lanes::U{
      _mm512_maskz_permutex2var_epi8(constants.upper_bytes, low, kPlanes[j].Load(), high)};
}

// Byte kByte of each lane. Vectors 0 and 1 fill the lower half, 2 and 3 the upper one: where the
// mask is clear the instruction keeps the index, which the second one then uses.
template <unsigned kByte>
HWY_INLINE Vector PackBytes(const Constants& constants, const GroupU& x) {
  const Vector lower =
      _mm512_mask2_permutex2var_epi8(x[0].raw, kPack[kByte].Load(), constants.lower_half, x[1].raw);
  return _mm512_mask2_permutex2var_epi8(x[2].raw, lower, constants.upper_half, x[3].raw);
}

HWY_INLINE Vector PackHalves(Lanes::U a, Lanes::U b) {
  return _mm512_permutex2var_epi8(a.raw, kPackHalves.Load(), b.raw);
}

HWY_INLINE Vector PackLowHalves(Lanes::U a, Lanes::U b) {
  return _mm512_permutex2var_epi8(a.raw, kPackLowHalves.Load(), b.raw);
}

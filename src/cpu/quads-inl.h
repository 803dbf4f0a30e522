// Loads and stores in quads. Included by cpu/simd.cc inside the namespace of each target.
//
// Four vectors hold 4 * width consecutive elements such that lane i of vector j is element 4 * i +
// j. Then the four bytes of a 32-bit word, and the four random bytes of a quad, lie in one lane of
// the four vectors: codes are unpacked and packed by shifts and masks alone, where consecutive
// elements in a vector would need a widening or narrowing shuffle per array and vector.

using QuadU = Lanes::U[4];
using QuadF = Lanes::F[4];

HWY_INLINE size_t QuadElements() { return 4 * hn::Lanes(Lanes::D()); }

HWY_INLINE Lanes::U LoadWords(const void* p) {
  return hn::LoadU(Lanes::DU(), static_cast<const uint32_t*>(p));
}
HWY_INLINE void StoreWords(Lanes::U words, void* p) {
  hn::StoreU(words, Lanes::DU(), static_cast<uint32_t*>(p));
}

// 16-bit elements, in the upper half of each lane.
HWY_INLINE void LoadHalves(const uint16_t* p, QuadU& upper) {
  const Lanes::DU du;
  const auto low = LoadWords(p);
  const auto high = LoadWords(p + 2 * hn::Lanes(du));
  const auto even = hn::ConcatEven(du, high, low);
  const auto odd = hn::ConcatOdd(du, high, low);
  const auto mask = Lanes::SetU(0xffff0000U);
  upper[0] = hn::ShiftLeft<16>(even);
  upper[1] = hn::And(even, mask);
  upper[2] = hn::ShiftLeft<16>(odd);
  upper[3] = hn::And(odd, mask);
}
// The lower halves are ignored.
HWY_INLINE void StoreHalves(const QuadU& upper, uint16_t* p) {
  const auto mask = Lanes::SetU(0xffff0000U);
  const auto even = hn::Or(hn::ShiftRight<16>(upper[0]), hn::And(upper[1], mask));
  const auto odd = hn::Or(hn::ShiftRight<16>(upper[2]), hn::And(upper[3], mask));
  hn::StoreInterleaved2(even, odd, Lanes::DU(), reinterpret_cast<uint32_t*>(p));
}

// fp32 elements.
HWY_INLINE void LoadFloats(const void* p, QuadF& x) {
  hn::LoadInterleaved4(Lanes::D(), static_cast<const float*>(p), x[0], x[1], x[2], x[3]);
}
HWY_INLINE void StoreFloats(const QuadF& x, void* p) {
  hn::StoreInterleaved4(x[0], x[1], x[2], x[3], Lanes::D(), static_cast<float*>(p));
}

// Byte j of each word, in bits 0 to 7.
HWY_INLINE void SplitBytes(Lanes::U words, QuadU& bytes) {
  const auto mask = Lanes::SetU(0xffU);
  bytes[0] = hn::And(words, mask);
  bytes[1] = hn::And(hn::ShiftRight<8>(words), mask);
  bytes[2] = hn::And(hn::ShiftRight<16>(words), mask);
  bytes[3] = hn::ShiftRight<24>(words);
}
// Byte j of each word, in bits 8 to 15.
HWY_INLINE void SplitBytesShifted(Lanes::U words, QuadU& bytes) {
  const auto mask = Lanes::SetU(0xff00U);
  bytes[0] = hn::And(hn::ShiftLeft<8>(words), mask);
  bytes[1] = hn::And(words, mask);
  bytes[2] = hn::And(hn::ShiftRight<8>(words), mask);
  bytes[3] = hn::And(hn::ShiftRight<16>(words), mask);
}
// The inverses; bits outside the byte are ignored.
HWY_INLINE Lanes::U JoinBytes(const QuadU& x) {
  const auto low = hn::Or(hn::And(x[0], Lanes::SetU(0xffU)),
                          hn::And(hn::ShiftLeft<8>(x[1]), Lanes::SetU(0xff00U)));
  const auto high =
      hn::Or(hn::And(hn::ShiftLeft<16>(x[2]), Lanes::SetU(0xff0000U)), hn::ShiftLeft<24>(x[3]));
  return hn::Or(low, high);
}
HWY_INLINE Lanes::U JoinBytesShifted(const QuadU& x) {
  const auto low = hn::Or(hn::And(hn::ShiftRight<8>(x[0]), Lanes::SetU(0xffU)),
                          hn::And(x[1], Lanes::SetU(0xff00U)));
  const auto high = hn::Or(hn::And(hn::ShiftLeft<8>(x[2]), Lanes::SetU(0xff0000U)),
                           hn::And(hn::ShiftLeft<16>(x[3]), Lanes::SetU(0xff000000U)));
  return hn::Or(low, high);
}

// Adds byte j of `random` to the low 16 bits of x[j] and packs bits 8 to 15 of the sums. Two sums
// share a lane, which no carry can cross: 255 * 256 + 255 fits 16 bits.
HWY_INLINE Lanes::U AddBytesAndJoin(const QuadU& x, Lanes::U random) {
  const auto fields = Lanes::SetU(0x00ff00ffU);
  const auto low_half = Lanes::SetU(0xffffU);
  const auto even = hn::Or(hn::And(x[0], low_half), hn::ShiftLeft<16>(x[2]));
  const auto odd = hn::Or(hn::And(x[1], low_half), hn::ShiftLeft<16>(x[3]));
  const auto even_sum = hn::Add(even, hn::And(random, fields));
  const auto odd_sum = hn::Add(odd, hn::And(hn::ShiftRight<8>(random), fields));
  return hn::Or(hn::And(hn::ShiftRight<8>(even_sum), fields), hn::AndNot(fields, odd_sum));
}

// Bytes as floats: an image 2^23 + byte, less 2^23 (signed bytes are flipped to unsigned first).
// This spares the conversion instructions, which share a port with the shifts.
HWY_INLINE Lanes::F FloatOfByte(Lanes::U byte, float bias) {
  return hn::Sub(Lanes::AsFloat(hn::Or(byte, Lanes::SetU(0x4b000000U))), Lanes::Set(bias));
}
HWY_INLINE void LoadSignedCodes(const void* p, QuadF& codes) {
  QuadU bytes;
  SplitBytes(hn::Xor(LoadWords(p), Lanes::SetU(0x80808080U)), bytes);
  for (int j = 0; j < 4; ++j) codes[j] = FloatOfByte(bytes[j], 8388608.0F + 128.0F);
}
HWY_INLINE void LoadUnsignedCodes(const void* p, QuadF& codes) {
  QuadU bytes;
  SplitBytes(LoadWords(p), bytes);
  for (int j = 0; j < 4; ++j) codes[j] = FloatOfByte(bytes[j], 8388608.0F);
}

// The random words of one group, one a quad.
struct RandomWords {
  HWY_ALIGN uint32_t words[kGroupSize / 4];

  HWY_INLINE RandomWords(uint64_t group, uint32_t stream_seed) { Draw(group, stream_seed, words); }

  static HWY_INLINE void Draw(uint64_t group, uint32_t stream_seed, uint32_t* words) {
    const Lanes::DU du;
    const uint64_t counter = 16 * group;
    const auto seed = Lanes::Xor(Lanes::SetU(stream_seed),
                                 Mix<Lanes>(Lanes::SetU(static_cast<uint32_t>(counter >> 32))));
    for (size_t quad = 0; quad < kGroupSize / 4; quad += hn::Lanes(du)) {
      // Iota of a constant is one; of a variable it is built lane by lane through memory.
      const auto counters =
          hn::Add(Lanes::SetU(static_cast<uint32_t>(counter + quad)), hn::Iota(du, 0));
      hn::Store(RandomWord<Lanes>(counters, seed), du, words + quad);
    }
  }
};

// The random bytes of the elements of a task's group, wherever a group of the whole begins.
struct RandomBytes {
  HWY_ALIGN uint32_t words[2 * kGroupSize / 4];
  const char* bytes;

  HWY_INLINE RandomBytes(const TensorTask& task, uint64_t group, core::Purpose purpose)
      : bytes(reinterpret_cast<const char*>(words) + task.first_in_group) {
    RandomWords::Draw(group, task.stream_seeds[purpose], words);
    if (task.first_in_group == 0) return;
    RandomWords::Draw(group + 1, task.stream_seeds[purpose], words + kGroupSize / 4);
  }
  HWY_INLINE void Load(size_t i, QuadU& random) const { SplitBytes(LoadWords(bytes + i), random); }
};

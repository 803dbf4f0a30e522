// Moments of every codec, in quads. Included by cpu/simd.cc inside the namespace of each target.
// `i` is the first element of the quads inside the group; tiles hold quads as LoadTile reads them.

template <class Code>
struct QuantizedFirst {
  using Decoder = typename Code::template Decoder<Lanes>;

  static HWY_INLINE void Load(const Decoder& decoder, const void* codes, size_t i, QuadF& m) {
    QuadF values;
    LoadSignedCodes(static_cast<const int8_t*>(codes) + i, values);
    for (int j = 0; j < 4; ++j) m[j] = Code::template Decode<Lanes>(decoder, values[j]);
  }

  static HWY_INLINE void Store(const float* tile, uint32_t max_bits, void* codes, float* scale) {
    const uint32_t scale_bits = Code::ScaleBits(max_bits);
    const typename Code::template Encoder<Lanes> encoder(scale_bits);
    for (size_t i = 0; i < kGroupSize; i += QuadElements()) {
      QuadF m;
      QuadU encoded;
      LoadTile(tile + i, m);
      for (int j = 0; j < 4; ++j) encoded[j] = Code::template Encode<Lanes>(encoder, m[j]);
      StoreWords(JoinBytes(encoded), static_cast<int8_t*>(codes) + i);
    }
    *scale = std::bit_cast<float>(scale_bits);
  }
};

template <class Code>
struct QuantizedSecond {
  using Decoder = typename Code::template Decoder<Lanes>;

  static HWY_INLINE void Load(const Decoder& decoder, const void* codes, size_t i, QuadF& v) {
    QuadF values;
    LoadUnsignedCodes(static_cast<const uint8_t*>(codes) + i, values);
    for (int j = 0; j < 4; ++j) v[j] = Code::template Decode<Lanes>(decoder, values[j]);
  }

  static HWY_INLINE Lanes::F Measured(Lanes::F v) { return Code::template Measured<Lanes>(v); }

  static HWY_INLINE void Store(const float* tile, uint32_t max_bits, uint64_t group, uint32_t seed,
                               void* codes, float* scale) {
    const uint32_t scale_bits = Code::ScaleBits(max_bits);
    const typename Code::template Encoder<Lanes> encoder(scale_bits);
    const RandomWords random(group, seed);
    for (size_t i = 0; i < kGroupSize; i += QuadElements()) {
      QuadF v;
      QuadU fixed;
      LoadTile(tile + i, v);
      for (int j = 0; j < 4; ++j) fixed[j] = Code::template FixedPoint<Lanes>(encoder, v[j]);
      StoreWords(AddBytesAndJoin(fixed, LoadWords(random.words + i / 4)),
                 static_cast<uint8_t*>(codes) + i);
    }
    *scale = std::bit_cast<float>(scale_bits);
  }
};

struct PlainDecoder {
  explicit HWY_INLINE PlainDecoder(uint32_t /*scale_bits*/) {}
};

struct PlainFirst {
  using Decoder = PlainDecoder;

  static HWY_INLINE void Load(const Decoder& /*decoder*/, const void* values, size_t i, QuadF& m) {
    LoadFloats(static_cast<const float*>(values) + i, m);
  }

  static HWY_INLINE void Store(const float* tile, uint32_t /*max_bits*/, void* values,
                               float* /*scale*/) {
    for (size_t i = 0; i < kGroupSize; i += QuadElements()) {
      QuadF m;
      LoadTile(tile + i, m);
      for (auto& lane : m) lane = Lanes::AsFloat(FlushedFirstBits<Lanes>(lane));
      StoreFloats(m, static_cast<float*>(values) + i);
    }
  }
};

struct PlainSecond {
  using Decoder = PlainDecoder;

  static HWY_INLINE void Load(const Decoder& /*decoder*/, const void* values, size_t i, QuadF& v) {
    LoadFloats(static_cast<const float*>(values) + i, v);
  }

  static HWY_INLINE Lanes::F Measured(Lanes::F v) { return v; }

  static HWY_INLINE void Store(const float* tile, uint32_t /*max_bits*/, uint64_t /*group*/,
                               uint32_t /*seed*/, void* values, float* /*scale*/) {
    for (size_t i = 0; i < kGroupSize; i += QuadElements()) {
      QuadF v;
      LoadTile(tile + i, v);
      StoreFloats(v, static_cast<float*>(values) + i);
    }
  }
};

struct NoneCodec {
  using First = PlainFirst;
  using Second = PlainSecond;
  static constexpr bool kQuantized = false;
};
struct RootCodec {
  using First = QuantizedFirst<RootFirst>;
  using Second = QuantizedSecond<RootSecond>;
  static constexpr bool kQuantized = true;
};
struct SoftsignCodec {
  using First = QuantizedFirst<SoftsignFirst>;
  using Second = QuantizedSecond<SoftsignSecond>;
  static constexpr bool kQuantized = true;
};

// Constants of docs/format.md. Included by core/formulas-inl.h.

constexpr uint32_t kSignBit = 0x80000000U;
constexpr uint32_t kMagnitudeMask = 0x7fffffffU;
constexpr uint32_t kInfinityBits = 0x7f800000U;
constexpr uint32_t kCanonicalNan = 0x7fc00000U;

constexpr uint32_t kScaleFlag = 1U;                      // section 6
constexpr uint32_t kFirstScaleFloor = 0x1b800000U;       // 2^-72, sections 5.1 and 7
constexpr uint32_t kSecondScaleFloor = 0x0d800000U;      // 2^-100, section 7
constexpr uint32_t kSecondRootScaleFloor = 0x26800000U;  // 2^-50: softsign keeps roots of v
constexpr float kSecondMomentFloor = 0x1p-100F;          // section 8.1
constexpr uint32_t kFirstMomentFlush = 0x0d800000U;      // 2^-100, section 5.3

// Adding one of these to a small float leaves round-to-nearest-even of it in the low bits of the
// image: the integer for 1.5 * 2^23, 8 binary places for 2^15.
constexpr float kRoundToInteger = 12582912.0F;
constexpr float kRoundToByteFraction = 32768.0F;

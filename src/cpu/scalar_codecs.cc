#include "cpu/scalar_codecs.h"

#include <algorithm>
#include <cstdint>

#include "cpu/scalar.h"

namespace flashoptim::cpu {
namespace {

using L = scalar::Lanes;

// Half of the range of a random byte: nearest rounding.
constexpr std::uint32_t kNearestByte = 128;

bool IsFinite(float x) { return (L::Bits(x) & scalar::kMagnitudeMask) < scalar::kInfinityBits; }

// Calls `use` with the WeightFormat of 16-bit weights.
template <class Use>
void WithFormat(const SplitWeights& weights, Use use) {
  const bool bfloat16 = weights.dtype == DType::kBFloat16;
  switch (weights.correction_bits) {
    case 0:
      return bfloat16 ? use(scalar::Bfloat16Format<0>{}) : use(scalar::Float16Format<0>{});
    case 8:
      return bfloat16 ? use(scalar::Bfloat16Format<8>{}) : use(scalar::Float16Format<8>{});
    default:
      return bfloat16 ? use(scalar::Bfloat16Format<16>{}) : use(scalar::Float16Format<16>{});
  }
}

std::uint32_t LoadCorrection(const SplitWeights& weights, std::uint64_t i) {
  std::int32_t correction = 0;
  if (weights.correction_bits == 8) {
    correction = static_cast<const std::int8_t*>(weights.correction)[i];
  } else if (weights.correction_bits == 16) {
    correction = static_cast<const std::int16_t*>(weights.correction)[i];
  }
  return static_cast<std::uint32_t>(correction);
}

void StoreCorrection(const SplitWeights& weights, std::uint64_t i, std::uint32_t correction) {
  if (weights.correction_bits == 8) {
    static_cast<std::uint8_t*>(weights.correction)[i] = static_cast<std::uint8_t>(correction);
  } else if (weights.correction_bits == 16) {
    static_cast<std::uint16_t*>(weights.correction)[i] = static_cast<std::uint16_t>(correction);
  }
}

template <class Code>
void DecodeFirstCodes(const void* data, const float* scale, Span span, float* moment) {
  const std::uint32_t scale_bits = L::Bits(*scale);
  const typename Code::template Decoder<L> decoder(scale_bits);
  const bool flagged = (scale_bits & scalar::kScaleFlag) != 0;
  for (unsigned i = 0; i < span.size; ++i) {
    const int code = static_cast<const std::int8_t*>(data)[span.offset + i];
    moment[i] = flagged && code == -128
                    ? L::AsFloat(scalar::kCanonicalNan)
                    : Code::template Decode<L>(decoder, static_cast<float>(code));
  }
}

template <class Code>
void EncodeFirstCodes(void* data, float* scale, Span span, const float* moment) {
  std::uint32_t max_bits = 0;
  bool flagged = false;
  for (unsigned i = 0; i < span.size; ++i) {
    if (IsFinite(moment[i])) {
      max_bits = std::max(max_bits, L::Bits(moment[i]) & scalar::kMagnitudeMask);
    } else {
      flagged = true;
    }
  }
  const std::uint32_t scale_bits = Code::ScaleBits(max_bits);
  const typename Code::template Encoder<L> encoder(scale_bits);
  for (unsigned i = 0; i < span.size; ++i) {
    static_cast<std::uint8_t*>(data)[span.offset + i] =
        IsFinite(moment[i])
            ? static_cast<std::uint8_t>(Code::template Encode<L>(encoder, moment[i]))
            : std::uint8_t{0x80};
  }
  *scale = L::AsFloat(scale_bits | (flagged ? scalar::kScaleFlag : 0U));
}

template <class Code>
void DecodeSecondCodes(const void* data, const float* scale, Span span, float* moment) {
  const std::uint32_t scale_bits = L::Bits(*scale);
  const typename Code::template Decoder<L> decoder(scale_bits);
  const bool flagged = (scale_bits & scalar::kScaleFlag) != 0;
  for (unsigned i = 0; i < span.size; ++i) {
    const unsigned code = static_cast<const std::uint8_t*>(data)[span.offset + i];
    moment[i] = flagged && code == 0 ? L::AsFloat(scalar::kInfinityBits)
                                     : Code::template Decode<L>(decoder, static_cast<float>(code));
  }
}

template <class Code>
void EncodeSecondCodes(void* data, float* scale, Span span, const float* moment,
                       const GroupRandom* random, core::Purpose purpose) {
  std::uint32_t max_bits = Code::kFloor;
  bool flagged = false;
  for (unsigned i = 0; i < span.size; ++i) {
    if (IsFinite(moment[i])) {
      max_bits = std::max(max_bits, L::Bits(Code::template Measured<L>(moment[i])));
    } else {
      flagged = true;
    }
  }
  const std::uint32_t scale_bits = Code::ScaleBits(max_bits);
  const typename Code::template Encoder<L> encoder(scale_bits);
  for (unsigned i = 0; i < span.size; ++i) {
    const std::uint32_t fixed =
        Code::template FixedPoint<L>(encoder, Code::template Measured<L>(moment[i])) +
        (random != nullptr ? random->Byte(purpose, i) : kNearestByte);
    static_cast<std::uint8_t*>(data)[span.offset + i] =
        IsFinite(moment[i]) ? static_cast<std::uint8_t>(fixed >> 8) : std::uint8_t{0};
  }
  *scale = L::AsFloat(scale_bits | (flagged ? scalar::kScaleFlag : 0U));
}

void LoadPlain(const void* data, Span span, float* moment) {
  std::copy_n(static_cast<const float*>(data) + span.offset, span.size, moment);
}

}  // namespace

Span GroupSpan(std::uint64_t row_length, std::uint64_t group) {
  const std::uint64_t groups_per_row = core::GroupsPerRow(row_length);
  const std::uint64_t start = group % groups_per_row * kGroupSize;
  return {group / groups_per_row * row_length + start,
          static_cast<unsigned>(std::min(kGroupSize, row_length - start))};
}

GroupRandom::GroupRandom(const std::uint32_t (&stream_seeds)[4], std::uint64_t group)
    : stream_seeds_(stream_seeds),
      counter_(16 * group),
      high_(scalar::Mix<L>(static_cast<std::uint32_t>(counter_ >> 32))) {}

std::uint32_t GroupRandom::Byte(core::Purpose purpose, unsigned position) const {
  const auto counter = static_cast<std::uint32_t>(counter_) + position / 4;
  const std::uint32_t word = scalar::RandomWord<L>(counter, stream_seeds_[purpose] ^ high_);
  return (word >> (8 * (position % 4))) & 0xffU;
}

float LoadFloat(const void* data, DType dtype, std::uint64_t i) {
  switch (dtype) {
    case DType::kBFloat16:
      return scalar::FloatFromBfloat16<L>(static_cast<const std::uint16_t*>(data)[i]);
    case DType::kFloat16:
      return scalar::FloatFromFloat16<L>(static_cast<const std::uint16_t*>(data)[i]);
    case DType::kFloat32:
      break;
  }
  return static_cast<const float*>(data)[i];
}

float LoadMaster(const SplitWeights& weights, std::uint64_t i) {
  if (weights.dtype == DType::kFloat32) return static_cast<const float*>(weights.weight)[i];
  float master = 0.0F;
  WithFormat(weights, [&](auto format) {
    master = scalar::JoinMaster<L, decltype(format)>(
        static_cast<const std::uint16_t*>(weights.weight)[i], LoadCorrection(weights, i));
  });
  return master;
}

void StoreMaster(const SplitWeights& weights, std::uint64_t i, float master,
                 const GroupRandom* random, unsigned position) {
  if (weights.dtype == DType::kFloat32) {
    static_cast<float*>(weights.weight)[i] = L::AsFloat(scalar::CanonicalBits<L>(master));
    return;
  }
  WithFormat(weights, [&](auto format) {
    using Format = decltype(format);
    const std::uint32_t increment =
        random != nullptr
            ? scalar::StochasticIncrement<L, Format>(random->Byte(core::kWeightFirst, position),
                                                     random->Byte(core::kWeightSecond, position))
            : scalar::NearestIncrement<Format>();
    std::uint32_t weight = 0;
    std::uint32_t correction = 0;
    scalar::SplitMaster<L, Format>(master, increment, weight, correction);
    static_cast<std::uint16_t*>(weights.weight)[i] = static_cast<std::uint16_t>(weight);
    StoreCorrection(weights, i, correction);
  });
}

void DecodeFirst(Codec codec, const void* data, const float* scale, Span span, float* moment) {
  switch (codec) {
    case Codec::kNone:
      return LoadPlain(data, span, moment);
    case Codec::kRoot:
      return DecodeFirstCodes<scalar::RootFirst>(data, scale, span, moment);
    case Codec::kSoftsign:
      return DecodeFirstCodes<scalar::SoftsignFirst>(data, scale, span, moment);
  }
}

void DecodeSecond(Codec codec, const void* data, const float* scale, Span span, float* moment) {
  switch (codec) {
    case Codec::kNone:
      return LoadPlain(data, span, moment);
    case Codec::kRoot:
      return DecodeSecondCodes<scalar::RootSecond>(data, scale, span, moment);
    case Codec::kSoftsign:
      return DecodeSecondCodes<scalar::SoftsignSecond>(data, scale, span, moment);
  }
}

void EncodeFirst(Codec codec, void* data, float* scale, Span span, const float* moment) {
  switch (codec) {
    case Codec::kNone:
      for (unsigned i = 0; i < span.size; ++i) {
        static_cast<float*>(data)[span.offset + i] =
            L::AsFloat(scalar::FlushedFirstBits<L>(moment[i]));
      }
      return;
    case Codec::kRoot:
      return EncodeFirstCodes<scalar::RootFirst>(data, scale, span, moment);
    case Codec::kSoftsign:
      return EncodeFirstCodes<scalar::SoftsignFirst>(data, scale, span, moment);
  }
}

void EncodeSecond(Codec codec, void* data, float* scale, Span span, const float* moment,
                  const GroupRandom* random, core::Purpose purpose) {
  switch (codec) {
    case Codec::kNone:
      for (unsigned i = 0; i < span.size; ++i) {
        static_cast<float*>(data)[span.offset + i] =
            L::AsFloat(scalar::CanonicalBits<L>(moment[i]));
      }
      return;
    case Codec::kRoot:
      return EncodeSecondCodes<scalar::RootSecond>(data, scale, span, moment, random, purpose);
    case Codec::kSoftsign:
      return EncodeSecondCodes<scalar::SoftsignSecond>(data, scale, span, moment, random, purpose);
  }
}

}  // namespace flashoptim::cpu

// Codes of the first moment in codec `root`, decoded by look-up.
#ifndef FLASHOPTIM_CPU_DECODE_TABLE_H_
#define FLASHOPTIM_CPU_DECODE_TABLE_H_

#include <cstdint>

#include "cpu/scalar.h"

namespace flashoptim::cpu {

/// By how much the image of what a code of the first moment decodes to exceeds the group's scale:
/// the same for every scale from the floor of format.md, 5.1, on. A code has 8 significant bits, so
/// that the lower half of the difference is zero; byte 2 is in `low`, byte 3 in `high`. Entry 0 is
/// that of code -128, whose magnitude does not fit 7 bits; code 0 has none.
struct DecodeTable {
  alignas(64) std::uint8_t low[128];
  alignas(64) std::uint8_t high[128];
};

template <class Code>
DecodeTable MakeDecodeTable() {
  using L = scalar::Lanes;
  const std::uint32_t scale_bits = L::Bits(1.0F);
  const typename Code::template Decoder<L> decoder(scale_bits);
  DecodeTable table;
  for (unsigned magnitude = 1; magnitude <= 128; ++magnitude) {
    const float moment = Code::template Decode<L>(decoder, static_cast<float>(magnitude));
    const std::uint32_t above = L::Bits(moment) - scale_bits;
    table.low[magnitude % 128] = static_cast<std::uint8_t>(above >> 16);
    table.high[magnitude % 128] = static_cast<std::uint8_t>(above >> 24);
  }
  return table;
}

}  // namespace flashoptim::cpu

#endif  // FLASHOPTIM_CPU_DECODE_TABLE_H_

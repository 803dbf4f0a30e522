// Codec `none` (docs/format.md, section 5.3). Included by core/formulas-inl.h.

// What is stored of a first moment: small ones as +0, NaN canonically. A second moment is stored as
// CanonicalBits.
template <class L>
FLASHOPTIM_FN typename L::U FlushedFirstBits(typename L::F m) {
  const auto magnitude = L::And(L::Bits(m), L::SetU(kMagnitudeMask));
  return L::SelectU(L::LessU(magnitude, L::SetU(kFirstMomentFlush)), L::SetU(0U),
                    CanonicalBits<L>(m));
}

// The random stream (docs/format.md, section 3). Included by core/formulas-inl.h.

template <class L>
FLASHOPTIM_FN typename L::U Mix(typename L::U x) {
  x = L::MulU(L::Xor(x, L::template Shr<16>(x)), L::SetU(0x7feb352dU));
  x = L::MulU(L::Xor(x, L::template Shr<15>(x)), L::SetU(0x846ca68bU));
  return L::Xor(x, L::template Shr<16>(x));
}

// One step of the fold that makes a stream seed.
template <class L>
FLASHOPTIM_FN typename L::U FoldSeed(typename L::U h, typename L::U word) {
  return Mix<L>(L::Add(L::Xor(h, word), L::SetU(0x9e3779b9U)));
}

// Random words of quads: `counter` is the low half of 16 * group + quad, `group_seed` is
// stream_seed ^ Mix(high half), which is the same for all quads of a group.
template <class L>
FLASHOPTIM_FN typename L::U RandomWord(typename L::U counter, typename L::U group_seed) {
  return Mix<L>(L::Xor(counter, group_seed));
}

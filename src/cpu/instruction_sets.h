// What the CPU and the operating system can run. Highway could say it too, but only through its
// shared library; this way nothing of it is needed but its headers.
#ifndef FLASHOPTIM_CPU_INSTRUCTION_SETS_H_
#define FLASHOPTIM_CPU_INSTRUCTION_SETS_H_

namespace flashoptim::cpu {

/// Whether everything that Highway compiles for its targets AVX2, AVX3 and AVX3_DL can run here,
/// wide registers included, which the operating system must save.
bool HasAvx2();
bool HasAvx512();
bool HasAvx512Vbmi();

}  // namespace flashoptim::cpu

#endif  // FLASHOPTIM_CPU_INSTRUCTION_SETS_H_

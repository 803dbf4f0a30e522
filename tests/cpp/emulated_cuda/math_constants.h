// In place of CUDA's header of this name (cuda_runtime.h).
#ifndef FLASHOPTIM_TESTS_EMULATED_CUDA_MATH_CONSTANTS_H_
#define FLASHOPTIM_TESTS_EMULATED_CUDA_MATH_CONSTANTS_H_

#include <limits>

inline constexpr float CUDART_INF_F = std::numeric_limits<float>::infinity();

#endif  // FLASHOPTIM_TESTS_EMULATED_CUDA_MATH_CONSTANTS_H_

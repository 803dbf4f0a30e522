// Blocks of threads on the calling thread. Warps run one after the other; the threads of a warp are
// fibers that change places where the warp exchanges values, and nowhere else.
#ifndef FLASHOPTIM_TESTS_EMULATED_CUDA_WARP_H_
#define FLASHOPTIM_TESTS_EMULATED_CUDA_WARP_H_

#include <array>
#include <cstdint>
#include <functional>
#include <vector>

namespace flashoptim::emulated_cuda {

struct Index {
  unsigned x = 0, y = 0, z = 0;
};

inline constexpr unsigned kLanes = 32;
using Words = std::array<std::uint32_t, kLanes>;

/// Runs `thread` once for each thread of each block. Throws std::logic_error where a GPU would hang
/// or be undefined: lanes of a warp that do not all come to the same exchange.
void Launch(const void* kernel, unsigned blocks, unsigned threads,
            const std::function<void()>& thread);

/// For a thread of a launch: gives `word` and returns those of all lanes of its warp, which have to
/// call this with the same `operation`. They stay valid until the thread's next call.
const Words& Exchange(unsigned mask, std::uint32_t operation, std::uint32_t word);

/// The kernels launched so far, in their order, those of all tests together.
const std::vector<const void*>& Launched();

/// How many times a warp has exchanged values so far.
std::uint64_t Exchanges();

}  // namespace flashoptim::emulated_cuda

#endif  // FLASHOPTIM_TESTS_EMULATED_CUDA_WARP_H_

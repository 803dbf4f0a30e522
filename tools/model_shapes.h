// The parameters of a model, from what describes it.
#ifndef FLASHOPTIM_TOOLS_MODEL_SHAPES_H_
#define FLASHOPTIM_TOOLS_MODEL_SHAPES_H_

#include <cstdint>
#include <string>
#include <vector>

namespace flashoptim::tools {

struct ModelParameter {
  std::string name;
  std::vector<std::uint64_t> shape;

  std::uint64_t elements() const;
};

/// From a safetensors file or index, or the config.json of a decoder like Llama, Mistral, Qwen2,
/// Qwen3 or GPT-2. Throws FileError or UsageError.
std::vector<ModelParameter> ShapesOf(const std::string& path);

/// A model of so many parameters in matrices with rows of 4096.
std::vector<ModelParameter> ShapesOfCount(std::uint64_t parameters);

}  // namespace flashoptim::tools

#endif  // FLASHOPTIM_TOOLS_MODEL_SHAPES_H_

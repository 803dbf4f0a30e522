#include "model_shapes.h"

#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>

#include "commands.h"
#include "flashoptim/checkpoint.h"
#include "flashoptim/state_file.h"

namespace flashoptim::tools {
namespace {

using nlohmann::json;
using Shapes = std::vector<ModelParameter>;

constexpr std::uint64_t kRow = 4096;
// No model is wider or deeper, and the elements of one that is both are fewer than 2^64.
constexpr std::uint64_t kWidest = 1U << 22;
constexpr std::uint64_t kDeepest = 1U << 16;

// Entries of a config.json that must be sensible numbers.
class Config {
 public:
  Config(const json& object, std::string path) : object_(object), path_(std::move(path)) {}

  std::uint64_t Number(const char* name, std::uint64_t most = kWidest) const {
    const auto found = object_.find(name);
    const bool is_number = found != object_.end() && found->is_number_unsigned();
    return Checked(name, is_number ? found->get<std::uint64_t>() : 0, most);
  }
  std::uint64_t NumberOr(const char* name, std::uint64_t missing) const {
    return object_.contains(name) && !object_[name].is_null() ? Number(name) : missing;
  }
  // What comes of several entries must be sensible too.
  std::uint64_t Checked(const std::string& name, std::uint64_t value,
                        std::uint64_t most = kWidest) const {
    if (value == 0 || value > most) {
      throw FileError(path_ + ": " + name + " must be a whole number from 1 to " +
                      std::to_string(most) + "; is this the config.json of the model?");
    }
    return value;
  }
  bool SwitchOr(const char* name, bool missing) const {
    const auto found = object_.find(name);
    return found != object_.end() && found->is_boolean() ? found->get<bool>() : missing;
  }

 private:
  const json& object_;
  std::string path_;
};

// A linear layer, [out, in] as torch keeps it.
void AddLinear(Shapes& shapes, const std::string& name, std::uint64_t out, std::uint64_t in,
               bool bias) {
  shapes.push_back({name + ".weight", {out, in}});
  if (bias) shapes.push_back({name + ".bias", {out}});
}

Shapes LlamaLike(const Config& config, const std::string& type) {
  const std::uint64_t hidden = config.Number("hidden_size");
  const std::uint64_t heads = config.Number("num_attention_heads");
  const std::uint64_t key_heads = config.NumberOr("num_key_value_heads", heads);
  const std::uint64_t head = config.Checked("head_dim, or else hidden_size by num_attention_heads,",
                                            config.NumberOr("head_dim", hidden / heads));
  const std::uint64_t queries = config.Checked("num_attention_heads times head_dim", heads * head);
  const std::uint64_t keys = config.Checked("num_key_value_heads times head_dim", key_heads * head);
  const std::uint64_t inner = config.Number("intermediate_size");
  const std::uint64_t vocabulary = config.Number("vocab_size");
  const std::uint64_t layers = config.Number("num_hidden_layers", kDeepest);
  const bool attention_bias = config.SwitchOr("attention_bias", false);
  const bool key_bias = type == "qwen2" || attention_bias;
  const bool mlp_bias = config.SwitchOr("mlp_bias", false);
  Shapes shapes{{"model.embed_tokens.weight", {vocabulary, hidden}}};
  for (std::uint64_t i = 0; i < layers; ++i) {
    const std::string layer = "model.layers." + std::to_string(i) + ".";
    AddLinear(shapes, layer + "self_attn.q_proj", queries, hidden, key_bias);
    AddLinear(shapes, layer + "self_attn.k_proj", keys, hidden, key_bias);
    AddLinear(shapes, layer + "self_attn.v_proj", keys, hidden, key_bias);
    AddLinear(shapes, layer + "self_attn.o_proj", hidden, queries, attention_bias);
    if (type == "qwen3") {
      shapes.push_back({layer + "self_attn.q_norm.weight", {head}});
      shapes.push_back({layer + "self_attn.k_norm.weight", {head}});
    }
    AddLinear(shapes, layer + "mlp.gate_proj", inner, hidden, mlp_bias);
    AddLinear(shapes, layer + "mlp.up_proj", inner, hidden, mlp_bias);
    AddLinear(shapes, layer + "mlp.down_proj", hidden, inner, mlp_bias);
    shapes.push_back({layer + "input_layernorm.weight", {hidden}});
    shapes.push_back({layer + "post_attention_layernorm.weight", {hidden}});
  }
  shapes.push_back({"model.norm.weight", {hidden}});
  if (!config.SwitchOr("tie_word_embeddings", false)) {
    shapes.push_back({"lm_head.weight", {vocabulary, hidden}});
  }
  return shapes;
}

Shapes Gpt2(const Config& config) {
  const std::uint64_t hidden = config.Number("n_embd");
  const std::uint64_t inner = config.NumberOr("n_inner", 4 * hidden);
  Shapes shapes{{"wte.weight", {config.Number("vocab_size"), hidden}},
                {"wpe.weight", {config.Number("n_positions"), hidden}}};
  const std::uint64_t layers = config.Number("n_layer", kDeepest);
  // Its layers keep [in, out].
  const auto add = [&](const std::string& name, std::uint64_t in, std::uint64_t out) {
    shapes.push_back({name + ".weight", {in, out}});
    shapes.push_back({name + ".bias", {out}});
  };
  const auto add_norm = [&](const std::string& name) {
    shapes.push_back({name + ".weight", {hidden}});
    shapes.push_back({name + ".bias", {hidden}});
  };
  for (std::uint64_t i = 0; i < layers; ++i) {
    const std::string layer = "h." + std::to_string(i) + ".";
    add_norm(layer + "ln_1");
    add(layer + "attn.c_attn", hidden, 3 * hidden);
    add(layer + "attn.c_proj", hidden, hidden);
    add_norm(layer + "ln_2");
    add(layer + "mlp.c_fc", hidden, inner);
    add(layer + "mlp.c_proj", inner, hidden);
  }
  add_norm("ln_f");
  return shapes;
}

Shapes FromConfig(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) throw FileError(path + " cannot be read");
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  const json config = json::parse(text, nullptr, false);
  if (!config.is_object()) throw FileError(path + " is not a JSON object; give a config.json");
  const auto found = config.find("model_type");
  const std::string type =
      found != config.end() && found->is_string() ? found->get<std::string>() : "";
  if (type == "gpt2") return Gpt2(Config(config, path));
  if (type == "llama" || type == "mistral" || type == "qwen2" || type == "qwen3") {
    return LlamaLike(Config(config, path), type);
  }
  throw UsageError(path + ": the model_type '" + type +
                   "' is not known (llama, mistral, qwen2, qwen3, gpt2); give the model's "
                   "safetensors file or --params");
}

Shapes FromTensors(const std::string& path) {
  ReadOptions options;
  options.verify = false;
  const CheckpointFile file = CheckpointFile::Open(path, options);
  Shapes shapes;
  if (const auto state = ReadOptimizerState(file)) {
    for (const ParameterState& parameter : state->parameters) {
      shapes.push_back({parameter.name, parameter.shape});
    }
    return shapes;
  }
  for (const FileTensor& tensor : file.tensors()) {
    const FileDType dtype = tensor.dtype;
    if (dtype == FileDType::kBF16 || dtype == FileDType::kF16 || dtype == FileDType::kF32 ||
        dtype == FileDType::kF64) {
      shapes.push_back({tensor.name, tensor.shape});
    }
  }
  return shapes;
}

}  // namespace

std::uint64_t ModelParameter::elements() const {
  std::uint64_t product = 1;
  for (const std::uint64_t size : shape) product *= size;
  return product;
}

Shapes ShapesOf(const std::string& path) {
  const bool tensors = path.ends_with(".safetensors") || path.ends_with(".safetensors.zst") ||
                       path.ends_with(".safetensors.index.json");
  if (!tensors && !path.ends_with(".json")) {
    throw UsageError(path +
                     ": give a .safetensors file, a .safetensors.index.json or a config.json");
  }
  return tensors ? FromTensors(path) : FromConfig(path);
}

Shapes ShapesOfCount(std::uint64_t parameters) {
  // As many as make the largest a sixteenth, as an embedding is in a model of some billions.
  constexpr std::uint64_t kMatrices = 16;
  Shapes shapes;
  for (std::uint64_t i = 0; i < kMatrices; ++i) {
    const std::uint64_t rows = (parameters / kRow + i) / kMatrices;
    if (rows != 0) shapes.push_back({"matrix " + std::to_string(i), {rows, kRow}});
  }
  if (parameters % kRow != 0) shapes.push_back({"rest", {parameters % kRow}});
  return shapes;
}

}  // namespace flashoptim::tools

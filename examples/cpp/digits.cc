// Trains a network with one hidden layer on handwritten digits, without a framework: bf16 weights
// with 24-bit master weights, 8-bit moments. Exits with 1 if it does not learn.
//
//   python3 examples/digits.py digits.bin && example_digits digits.bin
#include <flashoptim/optimizer.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <exception>
#include <fstream>
#include <numeric>
#include <random>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace {

constexpr std::size_t kPixels = 64, kHidden = 48, kDigits = 10;
constexpr std::size_t kTest = 397;  // images that are not trained on
constexpr std::size_t kBatch = 32;
constexpr int kEpochs = 20;
constexpr double kLr = 0.01;
constexpr double kWanted = 0.95;

struct Image {
  std::array<std::uint8_t, kPixels> pixels;  // 0 to 16
  std::uint8_t digit;
};

std::vector<Image> ReadImages(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::vector<Image> images;
  Image image{};
  while (file.read(reinterpret_cast<char*>(&image), sizeof(image))) images.push_back(image);
  if (images.size() <= kTest) throw std::runtime_error(path + " holds no digits");
  return images;
}

float FromBf16(std::uint16_t value) {
  const std::uint32_t image = static_cast<std::uint32_t>(value) << 16;
  float result = 0.0F;
  std::memcpy(&result, &image, sizeof(result));
  return result;
}

// A layer that multiplies by bf16 weights. Gradients are added up over a batch.
struct Layer {
  std::size_t inputs, outputs;
  std::vector<std::uint16_t> weight = std::vector<std::uint16_t>(inputs * outputs);
  std::vector<float> bias = std::vector<float>(outputs);
  std::vector<float> weight_gradient = std::vector<float>(inputs * outputs);
  std::vector<float> bias_gradient = std::vector<float>(outputs);

  std::vector<float> Forward(const std::vector<float>& input) const {
    std::vector<float> output = bias;
    for (std::size_t o = 0; o < outputs; ++o) {
      for (std::size_t i = 0; i < inputs; ++i) {
        output[o] += FromBf16(weight[o * inputs + i]) * input[i];
      }
    }
    return output;
  }

  // Takes the gradient of the output, returns that of the input.
  std::vector<float> Backward(const std::vector<float>& input, const std::vector<float>& gradient) {
    std::vector<float> back(inputs);
    for (std::size_t o = 0; o < outputs; ++o) {
      bias_gradient[o] += gradient[o];
      for (std::size_t i = 0; i < inputs; ++i) {
        weight_gradient[o * inputs + i] += gradient[o] * input[i];
        back[i] += gradient[o] * FromBf16(weight[o * inputs + i]);
      }
    }
    return back;
  }

  void ZeroGradients() {
    std::fill(weight_gradient.begin(), weight_gradient.end(), 0.0F);
    std::fill(bias_gradient.begin(), bias_gradient.end(), 0.0F);
  }
};

struct Network {
  Layer hidden{kPixels, kHidden};
  Layer output{kHidden, kDigits};

  struct Activations {
    std::vector<float> input, hidden, output;
  };

  Activations Forward(const Image& image) const {
    Activations at;
    for (const std::uint8_t pixel : image.pixels) {
      at.input.push_back(static_cast<float>(pixel) / 16.0F);
    }
    at.hidden = hidden.Forward(at.input);
    for (float& value : at.hidden) value = std::max(value, 0.0F);
    at.output = output.Forward(at.hidden);
    return at;
  }

  // Adds the gradients of the cross-entropy of one image.
  void Backward(const Image& image, const Activations& at) {
    const float largest = *std::max_element(at.output.begin(), at.output.end());
    std::vector<float> gradient(kDigits);
    for (std::size_t d = 0; d < kDigits; ++d) gradient[d] = std::exp(at.output[d] - largest);
    const float sum = std::accumulate(gradient.begin(), gradient.end(), 0.0F);
    for (float& value : gradient) value /= sum * kBatch;
    gradient[image.digit] -= 1.0F / kBatch;
    std::vector<float> back = output.Backward(at.hidden, gradient);
    for (std::size_t i = 0; i < kHidden; ++i) back[i] = at.hidden[i] > 0.0F ? back[i] : 0.0F;
    hidden.Backward(at.input, back);
  }

  double Accuracy(const std::vector<Image>& images, std::size_t begin, std::size_t end) const {
    std::size_t right = 0;
    for (std::size_t i = begin; i < end; ++i) {
      const std::vector<float> output_of = Forward(images[i]).output;
      const auto best = std::max_element(output_of.begin(), output_of.end()) - output_of.begin();
      right += best == images[i].digit ? 1 : 0;
    }
    return static_cast<double>(right) / static_cast<double>(end - begin);
  }
};

// Weights decay, biases do not. Parameters and gradients stay where they are for good.
flashoptim::Optimizer MakeOptimizer(Network& network) {
  flashoptim::ParameterGroup weights{flashoptim::AdamWOptions{.lr = kLr, .weight_decay = 0.1}, {}};
  flashoptim::ParameterGroup biases{flashoptim::AdamWOptions{.lr = kLr, .weight_decay = 0.0}, {}};
  const std::pair<std::string, Layer*> layers[] = {{"hidden", &network.hidden},
                                                   {"output", &network.output}};
  for (const auto& [name, layer] : layers) {
    const auto rows = static_cast<std::int64_t>(layer->outputs);
    const auto columns = static_cast<std::int64_t>(layer->inputs);
    weights.parameters.push_back(
        {name + ".weight", layer->weight.data(), flashoptim::DType::kBFloat16, {rows, columns}});
    biases.parameters.push_back(
        {name + ".bias", layer->bias.data(), flashoptim::DType::kFloat32, {rows}});
  }
  flashoptim::Optimizer optimizer({std::move(weights), std::move(biases)});
  for (const auto& [name, layer] : layers) {
    optimizer.SetGradient(name + ".weight", layer->weight_gradient.data(),
                          flashoptim::DType::kFloat32);
    optimizer.SetGradient(name + ".bias", layer->bias_gradient.data(), flashoptim::DType::kFloat32);
  }
  return optimizer;
}

// He's initialisation, in fp32: weight and correction together hold its first 24 bits.
void Initialise(flashoptim::Optimizer& optimizer, std::mt19937& random) {
  for (std::size_t i = 0; i < optimizer.size(); ++i) {
    const std::vector<std::int64_t>& shape = optimizer.parameter(i).shape;
    if (shape.size() != 2) continue;
    std::normal_distribution<float> normal(0.0F, std::sqrt(2.0F / static_cast<float>(shape[1])));
    std::vector<float> master(static_cast<std::size_t>(shape[0] * shape[1]));
    for (float& value : master) value = normal(random);
    optimizer.WriteMasterWeights(i, master);
  }
}

double Train(const std::string& path) {
  std::vector<Image> images = ReadImages(path);
  std::mt19937 random(0);
  std::shuffle(images.begin(), images.end(), random);
  const std::size_t trained = images.size() - kTest;

  Network network;
  flashoptim::Optimizer optimizer = MakeOptimizer(network);
  Initialise(optimizer, random);
  std::printf("before: accuracy %.3f\n", network.Accuracy(images, trained, images.size()));
  for (int epoch = 0; epoch < kEpochs; ++epoch) {
    const double lr = kLr * (kEpochs - epoch) / kEpochs;
    for (std::size_t group = 0; group < optimizer.groups(); ++group) optimizer.SetLr(group, lr);
    std::shuffle(images.begin(), images.begin() + static_cast<std::ptrdiff_t>(trained), random);
    for (std::size_t first = 0; first + kBatch <= trained; first += kBatch) {
      network.hidden.ZeroGradients();
      network.output.ZeroGradients();
      for (std::size_t i = first; i < first + kBatch; ++i) {
        network.Backward(images[i], network.Forward(images[i]));
      }
      optimizer.Step();
    }
  }
  const double accuracy = network.Accuracy(images, trained, images.size());
  const flashoptim::MemoryUse use = optimizer.Memory();
  std::printf("after:  accuracy %.3f; %llu bytes of weights, %llu of state\n", accuracy,
              static_cast<unsigned long long>(use.weights),
              static_cast<unsigned long long>(use.Optimizer()));
  return accuracy;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    if (argc != 2) throw std::invalid_argument("usage: example_digits DIGITS_FILE");
    return Train(argv[1]) >= kWanted ? 0 : 1;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}

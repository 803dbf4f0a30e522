// Trains a small network on handwritten digits with LibTorch and FlashAdamW: bf16 weights,
// parameter groups, a schedule, a checkpoint in the middle. Exits with 1 if it does not learn.
//
//   python3 examples/digits.py digits.bin && example_libtorch digits.bin
#include <flashoptim/torch_adapter.h>
#include <torch/cuda.h>
#include <torch/nn.h>
#include <torch/optim/schedulers/step_lr.h>
#include <torch/serialize.h>

#include <cstdint>
#include <cstdio>
#include <exception>
#include <fstream>
#include <iterator>
#include <sstream>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace {

constexpr std::int64_t kPixels = 64, kHidden = 48, kDigits = 10;
constexpr std::int64_t kTest = 397;  // images that are not trained on
constexpr std::int64_t kBatch = 32;
constexpr int kEpochs = 20;
constexpr double kWanted = 0.95;

struct Data {
  torch::Tensor images;  // bf16 [n, 64], 0 to 1
  torch::Tensor digits;  // int64 [n]
};

Data ReadData(const std::string& path, torch::Device device) {
  std::ifstream file(path, std::ios::binary);
  std::vector<char> bytes{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  const std::int64_t count = static_cast<std::int64_t>(bytes.size()) / (kPixels + 1);
  if (count <= kTest) throw std::runtime_error(path + " holds no digits");
  const torch::Tensor records = torch::from_blob(bytes.data(), {count, kPixels + 1}, torch::kByte)
                                    .index_select(0, torch::randperm(count));
  return {(records.slice(1, 0, kPixels).to(torch::kFloat) / 16.0).to(device, torch::kBFloat16),
          records.select(1, kPixels).to(device, torch::kLong)};
}

double Accuracy(torch::nn::Sequential& model, const Data& data, std::int64_t first) {
  const torch::NoGradGuard no_grad;
  const torch::Tensor answers = model->forward(data.images.slice(0, first)).argmax(1);
  return answers.eq(data.digits.slice(0, first)).to(torch::kFloat).mean().item<double>();
}

flashoptim::FlashAdamW MakeOptimizer(torch::nn::Sequential& model) {
  std::vector<torch::Tensor> matrices;
  std::vector<torch::Tensor> vectors;
  for (const torch::Tensor& parameter : model->parameters()) {
    (parameter.dim() > 1 ? matrices : vectors).push_back(parameter);
  }
  flashoptim::FlashAdamWOptions decay(0.01);
  decay.weight_decay(0.1).betas({0.9, 0.99});
  flashoptim::FlashAdamWOptions no_decay = decay;
  no_decay.weight_decay(0.0);

  std::vector<torch::optim::OptimizerParamGroup> groups;
  groups.emplace_back(matrices, decay.clone());
  groups.emplace_back(vectors, no_decay.clone());
  return flashoptim::FlashAdamW(groups);
}

double Train(const std::string& path) {
  torch::manual_seed(0);
  const torch::Device device(torch::cuda::is_available() ? torch::kCUDA : torch::kCPU);
  const Data data = ReadData(path, device);
  const std::int64_t trained = data.digits.size(0) - kTest;
  torch::nn::Sequential model(torch::nn::Linear(kPixels, kHidden), torch::nn::ReLU(),
                              torch::nn::Linear(kHidden, kDigits));
  model->to(device, torch::kBFloat16);

  flashoptim::FlashAdamW optimizer = MakeOptimizer(model);
  torch::optim::StepLR schedule(optimizer, /*step_size=*/5, /*gamma=*/0.5);
  std::printf("before: accuracy %.3f\n", Accuracy(model, data, trained));
  for (int epoch = 0; epoch < kEpochs; ++epoch) {
    const torch::Tensor order = torch::randperm(trained).to(device);
    for (std::int64_t first = 0; first + kBatch <= trained; first += kBatch) {
      const torch::Tensor batch = order.slice(0, first, first + kBatch);
      optimizer.zero_grad();
      const torch::Tensor output = model->forward(data.images.index_select(0, batch));
      const torch::Tensor loss = torch::nn::functional::cross_entropy(
          output.to(torch::kFloat), data.digits.index_select(0, batch));
      loss.backward();
      optimizer.step();
    }
    schedule.step();
    if (epoch + 1 == kEpochs / 2) {
      std::stringstream file;
      torch::save(optimizer, file);
      optimizer = MakeOptimizer(model);
      torch::load(optimizer, file);
    }
  }
  const double accuracy = Accuracy(model, data, trained);
  const flashoptim::MemoryUse use = optimizer.memory();
  std::printf("after:  accuracy %.3f; %llu bytes of weights, %llu of state\n", accuracy,
              static_cast<unsigned long long>(use.weights),
              static_cast<unsigned long long>(use.Optimizer()));
  return accuracy;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    if (argc != 2) throw std::invalid_argument("usage: example_libtorch DIGITS_FILE");
    return Train(argv[1]) >= kWanted ? 0 : 1;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}

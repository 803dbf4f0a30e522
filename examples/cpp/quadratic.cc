// A tour of the C++ interface: two vectors are fitted to a target. Exits with 1 if it fails.
#include <flashoptim/optimizer.h>
#include <flashoptim/optimizer_file.h>

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <exception>
#include <filesystem>
#include <memory>
#include <random>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace {

constexpr std::size_t kRows = 64;
constexpr std::size_t kColumns = 128;
constexpr int kSteps = 300;

float FromBf16(std::uint16_t value) {
  const std::uint32_t image = static_cast<std::uint32_t>(value) << 16;
  float result = 0.0F;
  std::memcpy(&result, &image, sizeof(result));
  return result;
}

float Target(std::size_t i) { return 0.5F - static_cast<float>(i % 13) / 13.0F; }

struct Model {
  std::vector<std::uint16_t> weight = std::vector<std::uint16_t>(kRows * kColumns);  // bf16
  std::vector<float> bias = std::vector<float>(kRows);
  std::vector<float> weight_gradient = std::vector<float>(kRows * kColumns);
  std::vector<float> bias_gradient = std::vector<float>(kRows);

  // Half the mean squared distance from the target. Fills the gradients.
  double Loss() {
    double sum = 0.0;
    const auto add = [&sum](float distance) {
      sum += 0.5 * distance * distance;
      return distance;
    };
    for (std::size_t i = 0; i < weight.size(); ++i) {
      weight_gradient[i] = add(FromBf16(weight[i]) - Target(i));
    }
    for (std::size_t i = 0; i < bias.size(); ++i) bias_gradient[i] = add(bias[i] - Target(i));
    return sum / static_cast<double>(weight.size() + bias.size());
  }
};

bool Train() {
  Model model;

  flashoptim::AdamWOptions options;
  options.lr = 0.02;
  options.weight_decay = 0.01;
  flashoptim::AdamWOptions no_decay = options;
  no_decay.weight_decay = 0.0;

  std::vector<flashoptim::ParameterGroup> groups;
  groups.push_back(
      {options,
       {{"weight", model.weight.data(), flashoptim::DType::kBFloat16, {kRows, kColumns}}}});
  groups.push_back({no_decay, {{"bias", model.bias.data(), flashoptim::DType::kFloat32, {kRows}}}});
  flashoptim::Optimizer optimizer(std::move(groups));

  optimizer.SetGradient("weight", model.weight_gradient.data(), flashoptim::DType::kFloat32);
  optimizer.SetGradient("bias", model.bias_gradient.data(), flashoptim::DType::kFloat32);

  const double first = model.Loss();
  for (int step = 0; step < kSteps; ++step) {
    model.Loss();
    const double lr = options.lr * (kSteps - step) / kSteps;
    for (std::size_t group = 0; group < optimizer.groups(); ++group) optimizer.SetLr(group, lr);
    optimizer.Step();
  }
  const double last = model.Loss();

  const flashoptim::MemoryUse use = optimizer.Memory();
  std::printf("AdamW: loss %.3g -> %.3g; %zu bytes of state\n", first, last,
              static_cast<std::size_t>(use.Optimizer()));

  for (const flashoptim::StateEntry& entry : optimizer.state(0)) {
    std::printf("  %-20s %8zu bytes\n", entry.name.c_str(), entry.bytes);
  }
  return last < 0.01 * first;
}

// Starts from fp32 weights, which the 16-bit weight and its correction stand for.
bool StartFromFp32() {
  std::vector<std::uint16_t> weight(kRows * kColumns);
  flashoptim::LionOptions options;
  options.storage.master_weight_bits = 32;
  flashoptim::Optimizer optimizer(
      options, {{"weight", weight.data(), flashoptim::DType::kBFloat16, {kRows, kColumns}}});

  std::vector<float> master(weight.size());
  for (std::size_t i = 0; i < master.size(); ++i) master[i] = Target(i);
  optimizer.WriteMasterWeights(0, master);

  std::vector<float> read(master.size());
  optimizer.ReadMasterWeights(0, read);
  return read == master;
}

// Keeps the state in memory of the program: one block, cut as the layout says.
bool BringMemory() {
  Model model;
  const std::vector<flashoptim::ParameterGroup> groups = {
      {flashoptim::SgdOptions{.momentum = 0.9},
       {{"weight", model.weight.data(), flashoptim::DType::kBFloat16, {kRows, kColumns}}}}};

  const auto place = [](std::size_t bytes) {  // rounded up to a fast alignment
    return (bytes + flashoptim::kFastAlignment - 1) / flashoptim::kFastAlignment *
           flashoptim::kFastAlignment;
  };
  std::size_t total = flashoptim::kFastAlignment;
  for (const flashoptim::StateEntry& entry : flashoptim::StateLayout(groups)) {
    total += place(entry.bytes);
  }
  std::vector<std::byte> block(total);
  void* start = block.data();
  std::size_t space = total;
  auto* next = static_cast<std::byte*>(std::align(flashoptim::kFastAlignment, 1, start, space));

  flashoptim::StateMemory memory;
  for (const flashoptim::StateEntry& entry : flashoptim::StateLayout(groups)) {
    memory.addresses.push_back(next);
    next += place(entry.bytes);
  }
  flashoptim::Optimizer optimizer(groups, memory);

  model.Loss();
  optimizer.SetGradient(0, model.weight_gradient.data(), flashoptim::DType::kFloat32);
  optimizer.Step();
  return optimizer.StepCount(0) == 1;
}

// Goes on in another optimizer of the same tensors.
bool SaveAndLoad() {
  const std::string path = (std::filesystem::temp_directory_path() /
                            ("flashoptim-example-" + std::to_string(std::random_device{}())))
                               .string() +
                           ".safetensors";
  std::vector<float> weight(kRows, 1.0F);
  const std::vector<flashoptim::Parameter> parameters = {
      {"w", weight.data(), flashoptim::DType::kFloat32, {kRows}}};
  flashoptim::Optimizer optimizer(flashoptim::AdamWOptions{}, parameters);
  const std::vector<float> gradient(kRows, 0.5F);
  optimizer.SetGradient(0, gradient.data(), flashoptim::DType::kFloat32);
  optimizer.Step();

  flashoptim::SaveOptimizer(optimizer, path);

  flashoptim::Optimizer resumed(flashoptim::AdamWOptions{}, parameters);
  flashoptim::LoadOptimizer(resumed, path);
  std::filesystem::remove(path);
  return resumed.StepCount(0) == 1;
}

// What is wrong is said before anything is written.
bool Refuse() {
  std::vector<float> weight(8);
  try {
    const flashoptim::Optimizer optimizer(
        flashoptim::AdamWOptions{},
        {{"w", weight.data(), flashoptim::DType::kFloat32, {2, 4}, {8, 1}}});
  } catch (const std::invalid_argument& error) {
    std::printf("refused: %s\n", error.what());
    return true;
  }
  return false;
}

}  // namespace

int main() {
  try {
    return Train() && StartFromFp32() && BringMemory() && SaveAndLoad() && Refuse() ? 0 : 1;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}

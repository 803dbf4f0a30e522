#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <memory>
#include <nlohmann/json.hpp>
#include <thread>
#include <vector>

#include "commands.h"
#include "flashoptim/convert.h"
#include "flashoptim/plan.h"
#include "flashoptim/runtime.h"
#include "flashoptim/state_file.h"
#include "text.h"

namespace flashoptim::tools {
namespace {

struct Settings {
  std::string elements = "16777216";
  double seconds = 3.0;
  int threads = 0;
  bool as_json = false;
};

using Clock = std::chrono::steady_clock;

// The median of what a call takes, in seconds, after one that does not count.
template <class Call>
double Median(double limit, const Call& call) {
  call();
  std::vector<double> times;
  const auto begin = Clock::now();
  do {
    const auto start = Clock::now();
    call();
    times.push_back(std::chrono::duration<double>(Clock::now() - start).count());
  } while (std::chrono::duration<double>(Clock::now() - begin).count() < limit);
  std::nth_element(times.begin(), times.begin() + static_cast<std::ptrdiff_t>(times.size() / 2),
                   times.end());
  return times[times.size() / 2];
}

// One AdamW parameter in bf16 with a 24-bit master weight, and its gradient.
class Subject {
 public:
  explicit Subject(std::uint64_t elements) {
    const std::uint64_t row = std::min<std::uint64_t>(elements, 4096);
    const std::vector<std::uint64_t> shape{elements / row, row};
    const Geometry geometry{shape[0], row, (row + kGroupSize - 1) / kGroupSize};
    elements_ = shape[0] * row;
    weight_.assign(elements_, 0x3f80);  // 1 in bf16
    gradient_.assign(elements_, 0x3c00);
    TensorBinding binding;
    binding.name = "bench";
    binding.weight = weight_.data();
    binding.weight_dtype = DType::kBFloat16;
    binding.rows = geometry.rows;
    binding.row_length = geometry.row_length;
    binding.step = &step_;
    binding.correction_bits = 8;
    binding.codec = EffectiveCodec(Codec::kRoot, shape.size(), geometry);
    moved_ = 2 * weight_.size() * 2 + gradient_.size() * 2;
    for (const StateTensor& tensor : StateTensorsOf(Rule::kAdam, {}, DType::kBFloat16, shape)) {
      storage_.emplace_back(tensor.bytes());
      void* data = storage_.back().data();
      moved_ += tensor.shape.empty() ? 0 : 2 * tensor.bytes();
      if (tensor.name == "weight_correction") binding.correction = data;
      if (tensor.name == "exp_avg") binding.first_moment = data;
      if (tensor.name == "exp_avg_scale") binding.first_moment_scale = static_cast<float*>(data);
      if (tensor.name == "exp_avg_sq") binding.second_moment = data;
      if (tensor.name == "exp_avg_sq_scale")
        binding.second_moment_scale = static_cast<float*>(data);
    }
    const std::vector<float> zeros(elements_, 0.0F);
    EncodeMoments(Moment::kFirst, binding.codec, geometry, zeros.data(), binding.first_moment,
                  binding.first_moment_scale);
    EncodeMoments(Moment::kSecond, binding.codec, geometry, zeros.data(), binding.second_moment,
                  binding.second_moment_scale);
    Hyperparameters h;
    h.weight_decay_kind = WeightDecay::kDecoupled;
    plan_ = std::make_unique<Plan>(Rule::kAdam, std::vector{binding}, 1);
    plan_->SetHyperparameters(0, h);
    plan_->SetGradient(0, {gradient_.data(), DType::kBFloat16});
  }

  std::uint64_t elements() const { return elements_; }
  /// Bytes read and written by a step.
  std::uint64_t moved() const { return moved_; }
  void Step() { plan_->Step(); }

 private:
  std::uint64_t elements_ = 0;
  std::uint64_t moved_ = 0;
  float step_ = 0.0F;
  std::vector<std::uint16_t> weight_;
  std::vector<std::uint16_t> gradient_;
  std::vector<std::vector<std::byte>> storage_;
  std::unique_ptr<Plan> plan_;
};

void Copy(std::vector<std::byte>& to, const std::vector<std::byte>& from, int threads) {
  std::vector<std::thread> workers;
  const std::size_t piece = from.size() / static_cast<std::size_t>(threads);
  for (int i = 0; i < threads; ++i) {
    const std::size_t begin = static_cast<std::size_t>(i) * piece;
    const std::size_t size = i + 1 == threads ? from.size() - begin : piece;
    workers.emplace_back([&, begin, size] { std::memcpy(&to[begin], &from[begin], size); });
  }
  for (std::thread& worker : workers) worker.join();
}

void Run(const Settings& settings) {
  if (settings.threads > 0) SetCpuThreads(settings.threads);
  Subject subject(ParseCount(settings.elements, "--elements"));
  const double step = Median(settings.seconds / 2, [&] { subject.Step(); });
  const std::vector<std::byte> from(subject.moved() / 2, std::byte{1});
  std::vector<std::byte> to(from.size());
  const double copy = Median(settings.seconds / 2, [&] { Copy(to, from, CpuThreads()); });
  const auto moved = static_cast<double>(subject.moved());
  const auto elements = static_cast<double>(subject.elements());
  if (settings.as_json) {
    const nlohmann::json text = {{"elements", subject.elements()},
                                 {"cpu_target", CpuTarget()},
                                 {"threads", CpuThreads()},
                                 {"step_ms", step * 1e3},
                                 {"bytes_moved", subject.moved()},
                                 {"step_gb_per_s", moved / step / 1e9},
                                 {"copy_gb_per_s", moved / copy / 1e9}};
    std::printf("%s\n", text.dump(2).c_str());
    return;
  }
  std::printf("AdamW, bf16, 24 bits, %s parameters, %s, %d threads\n", Fixed(elements, 0).c_str(),
              CpuTarget().c_str(), CpuThreads());
  std::printf("step  %8.2f ms  %6.2f G parameters/s  %6.1f GB/s\n", step * 1e3,
              elements / step / 1e9, moved / step / 1e9);
  std::printf("copy  %8.2f ms  of as many bytes       %6.1f GB/s\n", copy * 1e3,
              moved / copy / 1e9);
  std::printf("the step takes %.2f times the copy\n", step / copy);
}

}  // namespace

void AddBench(CLI::App& app) {
  auto settings = std::make_shared<Settings>();
  CLI::App* command = app.add_subcommand(
      "bench", "Time a step of AdamW on this machine's CPU beside a copy of as many bytes");
  command->add_option("--elements", settings->elements, "parameters, for instance 16M")
      ->capture_default_str();
  command->add_option("--seconds", settings->seconds, "how long to measure, in all")
      ->check(CLI::Range(0.01, 600.0))
      ->capture_default_str();
  command->add_option("--threads", settings->threads, "threads; 0: all processors")
      ->check(CLI::Range(0, 4096))
      ->capture_default_str();
  command->add_flag("--json", settings->as_json, "machine-readable output");
  command->footer("Examples:\n  flashoptim bench\n  flashoptim bench --elements 64M --threads 2");
  command->callback([settings] { Run(*settings); });
}

}  // namespace flashoptim::tools

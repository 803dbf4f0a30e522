#include "tensor_state.h"

#include <algorithm>
#include <cstring>

#include "flashoptim/layout.h"

namespace flashoptim::testing {
namespace {

constexpr std::size_t kGuard = 64;
constexpr std::byte kGuardByte{0xa5};

std::uint64_t Groups(const Shape& shape) {
  return shape.rows * ((shape.row_length + kGroupSize - 1) / kGroupSize);
}

std::size_t Size(DType dtype) { return dtype == DType::kFloat32 ? 4 : 2; }

struct Special {
  std::uint32_t infinity;
  std::uint32_t nan;
  std::uint32_t sign;
};

Special SpecialImages(DType dtype) {
  switch (dtype) {
    case DType::kBFloat16:
      return {0x7f80U, 0x7fc0U, 0x8000U};
    case DType::kFloat16:
      return {0x7c00U, 0x7e00U, 0x8000U};
    case DType::kFloat32:
      break;
  }
  return {0x7f800000U, 0x7fc00000U, 0x80000000U};
}

void StoreImage(Buffer& buffer, DType dtype, std::uint64_t i, std::uint32_t image) {
  std::memcpy(buffer.data() + i * Size(dtype), &image, Size(dtype));  // little-endian
}

// NaN, infinities and zeros, evenly.
std::uint32_t SpecialImage(DType dtype, Random& random) {
  const Special special = SpecialImages(dtype);
  const std::uint32_t images[] = {special.infinity,
                                  special.infinity | special.sign,
                                  special.nan,
                                  special.nan | special.sign | 1U,
                                  0U,
                                  special.sign};
  return images[random.Below(std::size(images))];
}

}  // namespace

std::uint64_t Random::Next() {
  state_ += 0x9e3779b97f4a7c15U;
  std::uint64_t x = state_;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9U;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebU;
  return x ^ (x >> 31);
}

std::uint32_t Random::Image(DType dtype, int low, int high) {
  const std::uint64_t word = Next();
  int fraction_bits = 23;
  int smallest = -126;
  int largest = 127;
  if (dtype == DType::kBFloat16) fraction_bits = 7;
  if (dtype == DType::kFloat16) {
    fraction_bits = 10;
    smallest = -14;
    largest = 15;
  }
  const int exponent =
      std::min(largest, low + static_cast<int>((word >> 32) % static_cast<unsigned>(high - low)));
  const std::uint32_t one = 1U << fraction_bits;
  std::uint32_t image = static_cast<std::uint32_t>(word) & (one - 1U);
  if (exponent >= smallest) {
    image += static_cast<std::uint32_t>(exponent - smallest + 1) << fraction_bits;
  } else {
    image = (image | one) >> std::min(31, smallest - exponent);
  }
  const std::uint32_t sign = SpecialImages(dtype).sign;
  return (word >> 63) != 0 ? image | sign : image;
}

Buffer::Buffer(std::size_t size, std::size_t misalignment) : size_(size) {
  if (size == 0) return;
  storage_.assign(size + 3 * kGuard, kGuardByte);
  const std::size_t past =
      reinterpret_cast<std::uintptr_t>(storage_.data()) % kGuard;  // over a boundary
  begin_ = kGuard + (kGuard - past) % kGuard + misalignment;
}

bool Buffer::GuardsAreIntact() const {
  const auto intact = [](std::byte b) { return b == kGuardByte; };
  const auto begin = storage_.begin();
  return size_ == 0 ||
         (std::all_of(begin, begin + static_cast<std::ptrdiff_t>(begin_), intact) &&
          std::all_of(begin + static_cast<std::ptrdiff_t>(begin_ + size_), storage_.end(), intact));
}

TensorState::TensorState(const StepCase& step_case, Shape shape, std::uint64_t seed,
                         bool misaligned)
    : step_case_(step_case), shape_(shape), seed_(seed) {
  const bool scaled = step_case.codec != Codec::kNone;
  const RuleCase& rule = step_case.rule;
  const bool present[kSlots] = {true,         step_case.weight.correction_bits != 0,
                                rule.first,   rule.first && scaled,
                                rule.second,  rule.second && scaled,
                                rule.maximum, rule.maximum && scaled,
                                true};
  for (const Slot slot : {kWeight, kCorrection, kFirst, kFirstScale, kSecond, kSecondScale,
                          kMaximum, kMaximumScale, kGradient}) {
    if (!present[slot]) continue;
    const bool scale = slot == kFirstScale || slot == kSecondScale || slot == kMaximumScale;
    const std::uint64_t count = scale ? Groups(shape) : elements();
    buffers_[slot] = Buffer(count * ElementSize(slot), misaligned ? ElementSize(slot) : 0);
    std::fill_n(buffers_[slot].data(), buffers_[slot].size(), std::byte{0});
  }
  FillWeights();
  FillFreshMoments();
}

std::size_t TensorState::ElementSize(Slot slot) const {
  switch (slot) {
    case kWeight:
      return Size(step_case_.weight.dtype);
    case kCorrection:
      return static_cast<std::size_t>(step_case_.weight.correction_bits / 8);
    case kGradient:
      return Size(step_case_.gradient_dtype);
    case kFirst:
    case kSecond:
    case kMaximum:
      return step_case_.codec == Codec::kNone ? 4 : 1;
    default:
      return 4;
  }
}

void TensorState::FillWeights() {
  Random random(seed_);
  const bool wild = step_case_.values == Values::kWild;
  const bool nonfinite = step_case_.values == Values::kNonfinite;
  const DType dtype = step_case_.weight.dtype;
  for (std::uint64_t i = 0; i < elements(); ++i) {
    std::uint32_t image = wild ? random.Image(dtype, -150, 128) : random.Image(dtype, -8, 2);
    if (nonfinite && random.Below(40) == 0) image = SpecialImage(dtype, random);
    StoreImage(buffers_[kWeight], dtype, i, image);
  }
  if (!nonfinite) return;
  Buffer& correction = buffers_[kCorrection];
  // fp16's 16-bit correction has 13 bits.
  const bool narrow = dtype == DType::kFloat16 && step_case_.weight.correction_bits == 16;
  for (std::size_t i = 0; i < correction.size(); i += ElementSize(kCorrection)) {
    const auto c = static_cast<std::int16_t>(random.Next());
    const auto stored = static_cast<std::int16_t>(narrow ? c >> 3 : c);
    std::memcpy(correction.data() + i, &stored, ElementSize(kCorrection));
  }
}

void TensorState::FillFreshMoments() {
  if (step_case_.codec == Codec::kNone) return;
  for (const Slot codes : {kSecond, kMaximum}) {
    std::fill_n(buffers_[codes].data(), buffers_[codes].size(), std::byte{0xff});
  }
  for (const Slot slot : {kFirstScale, kSecondScale, kMaximumScale}) {
    if (buffers_[slot].empty()) continue;
    const float fresh =
        slot == kFirstScale ? FreshFirstScale() : FreshSecondScale(step_case_.codec);
    std::fill_n(buffers_[slot].As<float>(), buffers_[slot].size() / sizeof(float), fresh);
  }
}

TensorBinding TensorState::Binding() {
  TensorBinding binding;
  binding.name = step_case_.Name();
  binding.weight = buffers_[kWeight].As<void>();
  binding.weight_dtype = step_case_.weight.dtype;
  binding.correction_bits = step_case_.weight.correction_bits;
  binding.correction = buffers_[kCorrection].As<void>();
  binding.codec = step_case_.codec;
  binding.first_moment = buffers_[kFirst].As<void>();
  binding.first_moment_scale = buffers_[kFirstScale].As<float>();
  binding.second_moment = buffers_[kSecond].As<void>();
  binding.second_moment_scale = buffers_[kSecondScale].As<float>();
  binding.maximum = buffers_[kMaximum].As<void>();
  binding.maximum_scale = buffers_[kMaximumScale].As<float>();
  binding.rows = shape_.rows;
  binding.row_length = shape_.row_length;
  binding.step = &step_;
  binding.stream_key = seed_ * 0x9e3779b97f4a7c15U + 1U;
  return binding;
}

TensorBinding TensorState::Shard(std::uint64_t first_row, std::uint64_t rows, float* step) {
  TensorBinding binding = Binding();
  const auto advance = [&](auto*& address, Slot slot, std::uint64_t per_row) {
    if (address == nullptr) return;
    std::byte* bytes = buffers_[slot].data() + first_row * per_row * ElementSize(slot);
    address = static_cast<std::remove_reference_t<decltype(address)>>(static_cast<void*>(bytes));
  };
  const std::uint64_t groups = Groups({1, shape_.row_length, 0});
  advance(binding.weight, kWeight, shape_.row_length);
  advance(binding.correction, kCorrection, shape_.row_length);
  advance(binding.first_moment, kFirst, shape_.row_length);
  advance(binding.second_moment, kSecond, shape_.row_length);
  advance(binding.maximum, kMaximum, shape_.row_length);
  advance(binding.first_moment_scale, kFirstScale, groups);
  advance(binding.second_moment_scale, kSecondScale, groups);
  advance(binding.maximum_scale, kMaximumScale, groups);
  binding.rows = rows;
  binding.first_group = first_row * groups;
  binding.step = step;
  return binding;
}

void TensorState::FillGradient(int step) {
  Random random(seed_ ^ (static_cast<std::uint64_t>(step) << 32));
  const DType dtype = step_case_.gradient_dtype;
  const bool wild = step_case_.values == Values::kWild;
  // Early and few: what is not finite stays, and most groups should keep the fast path.
  const bool nonfinite = step_case_.values == Values::kNonfinite && step % 7 == 3 && step < 20;
  for (std::uint64_t i = 0; i < elements(); ++i) {
    // Above 2^63 the squares overflow; one step in eight is let up there.
    std::uint32_t image =
        wild ? random.Image(dtype, -150, step % 8 == 0 ? 128 : 60) : random.Image(dtype, -18, 0);
    if (nonfinite && random.Below(150) == 0) image = SpecialImage(dtype, random);
    if (random.Below(16) == 0) image = 0;
    StoreImage(buffers_[kGradient], dtype, i, image);
  }
}

void TensorState::CopyGradientFrom(const TensorState& other) {
  const Buffer& source = other.buffers_[kGradient];
  std::copy_n(source.data(), source.size(), buffers_[kGradient].data());
}

Gradient TensorState::CurrentGradient() {
  return {buffers_[kGradient].As<void>(), step_case_.gradient_dtype};
}

Gradient TensorState::ShardGradient(std::uint64_t first_row) {
  return {buffers_[kGradient].data() + first_row * shape_.row_length * ElementSize(kGradient),
          step_case_.gradient_dtype};
}

std::string TensorState::DifferenceFrom(const TensorState& other) const {
  static constexpr const char* kNames[kSlots] = {"weight",      "correction",    "first",
                                                 "first scale", "second",        "second scale",
                                                 "maximum",     "maximum scale", "gradient"};
  for (std::size_t slot = 0; slot < kGradient; ++slot) {
    const Buffer& mine = buffers_[slot];
    const Buffer& theirs = other.buffers_[slot];
    if (mine.size() != theirs.size()) return std::string(kNames[slot]) + " has another size";
    if (mine.empty() || std::memcmp(mine.data(), theirs.data(), mine.size()) == 0) continue;
    std::size_t i = 0;
    while (mine.data()[i] == theirs.data()[i]) ++i;
    return step_case_.Name() + " [" + std::to_string(shape_.rows) + ", " +
           std::to_string(shape_.row_length) + "]: " + kNames[slot] + " differs in element " +
           std::to_string(i / ElementSize(static_cast<Slot>(slot)));
  }
  return step_ == other.step_ ? "" : "the step counts differ";
}

bool TensorState::GuardsAreIntact() const {
  return std::all_of(buffers_.begin(), buffers_.end(),
                     [](const Buffer& buffer) { return buffer.GuardsAreIntact(); });
}

Plan PlanOf(std::vector<TensorState*> tensors) {
  std::vector<TensorBinding> bindings;
  bindings.reserve(tensors.size());
  for (TensorState* tensor : tensors) bindings.push_back(tensor->Binding());
  const RuleCase& rule = tensors.front()->step_case().rule;
  Plan plan(rule.rule, std::move(bindings), 1);
  plan.SetHyperparameters(0, rule.hyper);
  return plan;
}

void SetGradients(Plan& plan, std::vector<TensorState*> tensors) {
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    plan.SetGradient(i, tensors[i]->CurrentGradient());
  }
}

}  // namespace flashoptim::testing

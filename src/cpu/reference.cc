#include "cpu/reference.h"

#include <cstdint>

#include "cpu/scalar.h"
#include "cpu/scalar_codecs.h"

namespace flashoptim::cpu {
namespace {

using core::KernelRule;
using core::TensorTask;
using L = scalar::Lanes;

struct GroupMoments {
  float first[kGroupSize];
  float second[kGroupSize];
  float maximum[kGroupSize];
};

float* ScaleAt(float* scales, std::uint64_t group) {
  return scales == nullptr ? nullptr : scales + group;
}

float UpdateElement(const TensorTask& task, const scalar::LaneScalars<L>& h, float w, float g,
                    unsigned i, GroupMoments& moments) {
  const float effective = scalar::EffectiveGradient<L>(h, w, g);
  switch (task.rule) {
    case KernelRule::kSgd:
      return scalar::SgdWeight<L>(h, w, effective);
    case KernelRule::kSgdMomentum:
      return scalar::SgdMomentumWeight<L>(h, task.nesterov, w, effective, moments.first[i]);
    case KernelRule::kLion:
      return scalar::LionWeight<L>(h, w, effective, moments.first[i]);
    case KernelRule::kAdam:
      scalar::AdamMoments<L>(h, effective, moments.first[i], moments.second[i]);
      return scalar::AdamWeight<L>(h, w, moments.first[i], moments.second[i]);
    case KernelRule::kAdamMaximum:
      scalar::AdamMoments<L>(h, effective, moments.first[i], moments.second[i]);
      moments.maximum[i] = scalar::MaximumMoment<L>(moments.maximum[i], moments.second[i]);
      return scalar::AdamWeight<L>(h, w, moments.first[i], moments.maximum[i]);
  }
  return w;
}

}  // namespace

void StepGroupReference(const TensorTask& task, std::uint64_t group) {
  const Span span = GroupSpan(task.row_length, group);
  const std::uint64_t whole = core::GroupInWhole(task, group);
  const GroupRandom random(task.stream_seeds, whole);
  const GroupRandom next(task.stream_seeds, whole + 1);  // into which a shard's group may reach
  const SplitWeights weights = {task.weight, task.weight_dtype, task.correction,
                                task.correction_bits};
  float* first_scale = ScaleAt(task.first_scale, group);
  float* second_scale = ScaleAt(task.second_scale, group);
  float* maximum_scale = ScaleAt(task.maximum_scale, group);

  const scalar::LaneScalars<L> h(task.scalars);
  GroupMoments moments;
  if (HasFirst(task.rule)) DecodeFirst(task.codec, task.first, first_scale, span, moments.first);
  if (HasSecond(task.rule)) {
    DecodeSecond(task.codec, task.second, second_scale, span, moments.second);
  }
  if (HasMaximum(task.rule)) {
    DecodeSecond(task.codec, task.maximum, maximum_scale, span, moments.maximum);
  }
  for (unsigned i = 0; i < span.size; ++i) {
    const std::uint64_t element = span.offset + i;
    const float g = LoadFloat(task.gradient, task.gradient_dtype, element);
    const float w = UpdateElement(task, h, LoadMaster(weights, element), g, i, moments);
    const core::PlaceInWhole place = core::ElementInWhole(task, whole, i);
    const GroupRandom& of_place = place.group == whole ? random : next;
    StoreMaster(weights, element, w, task.stochastic_weight ? &of_place : nullptr, place.position);
  }
  if (HasFirst(task.rule)) EncodeFirst(task.codec, task.first, first_scale, span, moments.first);
  if (HasSecond(task.rule)) {
    EncodeSecond(task.codec, task.second, second_scale, span, moments.second, &random,
                 core::kSecondMoment);
  }
  if (HasMaximum(task.rule)) {
    EncodeSecond(task.codec, task.maximum, maximum_scale, span, moments.maximum, &random,
                 core::kMaximum);
  }
}

void StepGroupsReference(const TensorTask& task, std::uint64_t begin, std::uint64_t end) {
  for (std::uint64_t group = begin; group < end; ++group) StepGroupReference(task, group);
}

}  // namespace flashoptim::cpu

#include "optimizer/validate.h"

#include <cmath>
#include <sstream>
#include <stdexcept>
#include <string>

namespace flashoptim {
namespace {

// eps must stay below 2^100 so that the denominator's reciprocal is a normal number (format, 8.1).
constexpr double kLargestEps = 0x1p100;

template <class... Parts>
[[noreturn]] void Fail(const Parts&... parts) {
  std::ostringstream message;
  (message << ... << parts);
  throw std::invalid_argument(message.str());
}

void CheckAtLeastZero(const std::string& whose, const char* name, double value) {
  if (!(value >= 0.0) || std::isinf(value)) {
    Fail(whose, name, " must be a finite number of at least 0, not ", value);
  }
}

void CheckFraction(const std::string& whose, const char* name, double value) {
  if (!(value >= 0.0 && value < 1.0)) Fail(whose, name, " must be in [0, 1), not ", value);
}

// Tensors without elements need no addresses.
bool IsEmpty(const TensorBinding& binding) { return binding.rows == 0 || binding.row_length == 0; }

void CheckMoment(const TensorBinding& binding, const char* what, bool wanted, const void* codes,
                 const float* scale) {
  if (wanted != (codes != nullptr)) {
    Fail("tensor '", binding.name, "': the ", what,
         wanted ? " is missing" : " is not used by the rule");
  }
  const bool scaled = wanted && binding.codec != Codec::kNone;
  if (scaled != (scale != nullptr)) {
    Fail("tensor '", binding.name, "': the scale of the ", what,
         scaled ? " is missing" : " must be null, since the codec is none");
  }
}

}  // namespace

core::KernelRule KernelRuleOf(Rule rule, const TensorBinding& binding) {
  switch (rule) {
    case Rule::kSgd:
      return binding.first_moment != nullptr ? core::KernelRule::kSgdMomentum
                                             : core::KernelRule::kSgd;
    case Rule::kAdam:
      return binding.maximum != nullptr ? core::KernelRule::kAdamMaximum : core::KernelRule::kAdam;
    case Rule::kLion:
      break;
  }
  return core::KernelRule::kLion;
}

void CheckBinding(Rule rule, const TensorBinding& binding, std::uint32_t parameter_groups) {
  const std::string tensor = "tensor '" + binding.name + "': ";
  if (binding.parameter_group >= parameter_groups) {
    Fail(tensor, "parameter group ", binding.parameter_group, " of ", parameter_groups);
  }
  if (binding.step == nullptr) Fail(tensor, "the step count is missing");
  if (binding.step_on_device && binding.device_type != DeviceType::kCuda) {
    Fail(tensor, "only tensors on a GPU can have their step count there");
  }
  if (!IsEmpty(binding) && binding.weight == nullptr) Fail(tensor, "the weight is missing");
  if (binding.correction_bits != 0 && binding.correction_bits != 8 &&
      binding.correction_bits != 16) {
    Fail(tensor, "correction_bits must be 0, 8 or 16, not ", binding.correction_bits);
  }
  if (binding.weight_dtype == DType::kFloat32 && binding.correction_bits != 0) {
    Fail(tensor, "an fp32 weight takes no correction");
  }
  if (IsEmpty(binding)) return;
  if ((binding.correction_bits != 0) != (binding.correction != nullptr)) {
    Fail(tensor, "the correction is ", binding.correction == nullptr ? "missing" : "not used");
  }
  const std::uint64_t groups = core::GroupsPerRow(binding.row_length);
  if (binding.group_stride != 0 && binding.group_stride < groups) {
    Fail(tensor, "its rows have ", groups, " groups, and those of the whole only ",
         binding.group_stride);
  }
  if (binding.first_in_group >= kGroupSize) {
    Fail(tensor, "first_in_group ", binding.first_in_group, " is not below ", kGroupSize);
  }
  if (binding.first_in_group != 0 && binding.codec != Codec::kNone) {
    Fail(tensor, "it begins inside a group of the whole, and moments in 8 bits need whole groups");
  }
  const core::KernelRule kernel = KernelRuleOf(rule, binding);
  CheckMoment(binding, "first moment", HasFirst(kernel), binding.first_moment,
              binding.first_moment_scale);
  CheckMoment(binding, "second moment", HasSecond(kernel), binding.second_moment,
              binding.second_moment_scale);
  CheckMoment(binding, "maximum of the second moment", HasMaximum(kernel), binding.maximum,
              binding.maximum_scale);
}

void CheckMomentsAgainst(const Hyperparameters& hyperparameters, Rule rule,
                         const TensorBinding& binding) {
  if (rule == Rule::kSgd && hyperparameters.momentum != 0.0 && binding.first_moment == nullptr &&
      !IsEmpty(binding)) {
    Fail("tensor '", binding.name, "': momentum is ", hyperparameters.momentum,
         " but there is no momentum buffer; make the plan with one");
  }
}

void CheckHyperparameters(Rule rule, const Hyperparameters& hyperparameters) {
  CheckHyperparametersOf("", rule, hyperparameters);
}

void CheckHyperparametersOf(const std::string& whose, Rule rule, const Hyperparameters& h) {
  CheckAtLeastZero(whose, "lr", h.lr);
  CheckAtLeastZero(whose, "initial_lr", h.initial_lr);
  CheckAtLeastZero(whose, "weight_decay", h.weight_decay);
  if (rule == Rule::kSgd) {
    CheckAtLeastZero(whose, "momentum", h.momentum);
    if (!std::isfinite(h.dampening))
      Fail(whose, "dampening must be a finite number, not ", h.dampening);
    if (h.nesterov && (h.momentum <= 0.0 || h.dampening != 0.0)) {
      Fail(whose, "nesterov needs a momentum above 0 and no dampening, not momentum ", h.momentum,
           " and dampening ", h.dampening);
    }
    return;
  }
  CheckFraction(whose, "betas[0]", h.beta1);
  CheckFraction(whose, "betas[1]", h.beta2);
  if (rule == Rule::kAdam) {
    CheckAtLeastZero(whose, "eps", h.eps);
    if (h.eps >= kLargestEps) Fail(whose, "eps must be below 2^100, not ", h.eps);
  }
}

}  // namespace flashoptim

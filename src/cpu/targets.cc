#include "cpu/targets.h"

#include <atomic>
#include <cstdlib>
#include <stdexcept>

#include "cpu/made_once.h"
#include "cpu/reference.h"

namespace flashoptim::cpu {
namespace {

std::vector<Target> FindTargets() {
  std::vector<Target> targets;
  if (const auto step = VbmiStepGroups()) targets.push_back({"avx512_vbmi", step});
  for (const std::string_view name : {"avx512", "avx2", "neon"}) {
    if (const auto step = SimdStepGroups(name)) targets.push_back({name, step});
  }
  targets.push_back({"scalar", StepGroupsReference});
  return targets;
}

const Target& FindTarget(std::string_view name) {
  std::string names;
  for (const Target& target : SupportedTargets()) {
    if (target.name == name) return target;
    names += names.empty() ? "" : ", ";
    names += target.name;
  }
  throw std::invalid_argument("CPU target '" + std::string(name) +
                              "' is unknown or not supported by this machine; choose one of: " +
                              names + " (FLASHOPTIM_CPU_TARGET)");
}

constinit std::atomic<const Target*> choice = nullptr;

}  // namespace

const std::vector<Target>& SupportedTargets() { return MadeOnce<FindTargets>(); }

const Target& ChosenTarget() {
  const Target* target = choice.load(std::memory_order_acquire);
  if (target == nullptr) {
    const char* forced = std::getenv("FLASHOPTIM_CPU_TARGET");
    target =
        forced != nullptr && *forced != '\0' ? &FindTarget(forced) : &SupportedTargets().front();
    choice.store(target, std::memory_order_release);
  }
  return *target;
}

void ChooseTarget(std::string_view name) {
  choice.store(&FindTarget(name), std::memory_order_release);
}

}  // namespace flashoptim::cpu

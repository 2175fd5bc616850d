// The tables of kernels, one per target, and the choice among them.
#include "kernels/cpu/target.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/target.cc"
#include "hwy/foreach_target.h"
//
#include "hwy/highway.h"

namespace sortition::kernels::cpu::HWY_NAMESPACE {

#define SORTITION_KERNEL(result, name, parameters) result name parameters;
#include "kernels/cpu/simd/kernels.inc"
#undef SORTITION_KERNEL

constexpr Kernels kKernels = {
#define SORTITION_KERNEL(result, name, parameters) .name = &name,
#include "kernels/cpu/simd/kernels.inc"
#undef SORTITION_KERNEL
};

}  // namespace sortition::kernels::cpu::HWY_NAMESPACE

#if HWY_ONCE

#include "kernels/check.h"

namespace sortition::kernels::cpu {
namespace {

// The list names every target that is compiled: no kernel lies in the binary without a name.
#define SORTITION_TARGET(name, bit, target) | bit
static_assert((0
#include "kernels/cpu/targets.inc"
               ) == HWY_TARGETS);
#undef SORTITION_TARGET

std::vector<const Target*> FindRunnable() {
  // Best first.
  static constexpr struct {
    int64_t bit;
    Target target;
  } kTargets[] = {
#define SORTITION_TARGET(name, bit, target) {bit, {name, target::kKernels}},
#include "kernels/cpu/targets.inc"
#undef SORTITION_TARGET
  };
  std::vector<const Target*> runnable;
  const int64_t supported = hwy::SupportedTargets() | HWY_EMU128;
  for (const auto& [bit, target] : kTargets) {
    if ((supported & bit) != 0) runnable.push_back(&target);
  }
  SORTITION_CHECK(!runnable.empty());
  return runnable;
}

}  // namespace

const std::vector<const Target*>& RunnableTargets() {
  static const std::vector<const Target*>& runnable = *new std::vector<const Target*>(FindRunnable());
  return runnable;
}

const Target& BestTarget() { return *RunnableTargets().front(); }

const Target* FindTarget(std::string_view name) {
  if (name == "auto") return &BestTarget();
  for (const Target* target : RunnableTargets()) {
    if (target->name == name) return target;
  }
  return nullptr;
}

std::string TargetNames() {
  std::string names = "auto";
  for (const Target* target : RunnableTargets()) names.append(", ").append(target->name);
  return names;
}

}  // namespace sortition::kernels::cpu

#endif  // HWY_ONCE

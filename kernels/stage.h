// A compiled sampler chain: the ordered stages that filter and reshape a row. Plain data; LAW.md says what each stage
// does.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

namespace sortition::kernels {

// A stage's kind, with its operands, is a line of kernels/law/functions/stages.inc.
enum class StageKind : uint32_t {
#define LAW_STAGE(name, number, sums, cut, state) k##name = number,
#include "kernels/law/functions/stages.inc"
};
inline constexpr uint32_t kStageKinds = 0
#define LAW_STAGE(name, number, sums, cut, state) +1
#include "kernels/law/functions/stages.inc"
    ;

struct Stage {
  StageKind kind = StageKind::kTemperature;
  std::array<uint32_t, 4> operands = {};
  bool operator==(const Stage&) const = default;
};

inline constexpr size_t kMaxStages = 16;

// True of a chain that carries one integer from step to step: mirostat and adaptive-p, of which at most one is there,
// and last.
inline bool KeepsSamplerState(std::span<const Stage> chain) {
  if (chain.empty()) return false;
  switch (chain.back().kind) {
#define LAW_STAGE(name, number, sums, cut, state) \
  case StageKind::k##name:                        \
    return state != 0;
#include "kernels/law/functions/stages.inc"
  }
  return false;
}

// The state before the first step: mirostat's mu = 2 tau (Q26, signed), adaptive-p's target (Q32), else 0.
inline uint64_t InitialSamplerState(std::span<const Stage> chain) {
  if (!KeepsSamplerState(chain)) return 0;
  const uint64_t first = chain.back().operands[0];
  return chain.back().kind == StageKind::kAdaptiveP ? first : 2 * first;
}

}  // namespace sortition::kernels

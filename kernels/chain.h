// A compiled chain: what filters and reshapes a row, first applied first. Plain data; LAW.md says what each stage does.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

namespace sortition::kernels {

// The number of a stage is its bit among a device's features (features.h) and its name in golden outputs: it never
// changes.
enum class StageKind : uint32_t {
  kTemperature = 0,          // multiplier, exponent, window (RowParameters' fields of these names), f32 bits of T
  kMinP = 1,                 // distance (RowParameters::min_p_distance)
  kTopK = 2,                 // k
  kTopP = 3,                 // round(p * 2^32)
  kTypicalP = 4,             // round(p * 2^32)
  kTopNSigma = 5,            // log2(n), Q6.26, two's complement
  kEpsilonCutoff = 6,        // -log2(epsilon), Q6.26
  kEtaCutoff = 7,            // -log2(eta), Q6.26
  kTopA = 8,                 // -log2(a), Q6.26
  kTopH = 9,                 // round(h * 2^31)
  kPLess = 10,               // nothing
  kXtc = 11,                 // round(probability * 2^32) - 1; -log2(threshold), Q6.26
  kDynamicTemperature = 12,  // lowest T and what the highest is above it, Q8.24; exponent, Q4.28
  kQuadraticSmoothing = 13,  // f32 bits: of the square's factor, and of the cube's
  kMirostat1 = 14,           // tau, Q6.26; eta, Q2.30; m
  kMirostat2 = 15,           // tau, Q6.26; eta, Q2.30
  kAdaptiveP = 16,           // target, Q0.32; decay, Q0.32
};
inline constexpr uint32_t kStageKinds = 17;

struct Stage {
  StageKind kind = StageKind::kTemperature;
  std::array<uint32_t, 4> operands = {};  // as said there; 0 where nothing is said
  bool operator==(const Stage&) const = default;
};

inline constexpr size_t kMaxStages = 16;

// Mirostat and adaptive-p are last, exclude each other, and carry one integer from step to step.
inline bool KeepsSamplerState(std::span<const Stage> chain) {
  return !chain.empty() && chain.back().kind >= StageKind::kMirostat1;
}

// Before the first step: of mirostat mu = 2 tau (Q26, signed), of adaptive-p the target (Q32); 0 where there is none.
inline uint64_t InitialSamplerState(std::span<const Stage> chain) {
  if (!KeepsSamplerState(chain)) return 0;
  const uint64_t first = chain.back().operands[0];
  return chain.back().kind == StageKind::kAdaptiveP ? first : 2 * first;
}

}  // namespace sortition::kernels

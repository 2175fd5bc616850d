// The law's functions in terms of the row contract (kernels/row.h).
#pragma once

#include <algorithm>

#include "kernels/law/law.h"
#include "kernels/row.h"

namespace sortition::law {

// The weight of a row's largest logit, and of a distribution of one token.
inline constexpr uint64_t kUnitWeight = uint64_t{1} << 44;

// f32 bits, not canonical, of an element of a logits tensor; `element` holds its bytes in the low half for 16-bit
// types.
inline u32 Widen(kernels::DType dtype, u32 element) {
  switch (dtype) {
    case kernels::DType::kF32:
      return element;
    case kernels::DType::kF16:
      return WidenF16(element);
    case kernels::DType::kBF16:
      return WidenBf16(element);
  }
  __builtin_unreachable();
}

// Returns the tensor element, as above, with these canonical bits. They are a live logit's of this type.
inline u32 Narrow(kernels::DType dtype, u32 canonical) {
  switch (dtype) {
    case kernels::DType::kF32:
      return canonical;
    case kernels::DType::kBF16:
      return canonical >> 16;
    case kernels::DType::kF16: {
      const u32 sign = canonical >> 16 & 0x8000u;
      const u32 exponent = canonical >> 23 & 255u;
      const u32 mantissa = canonical & 0x7fffffu;
      if (exponent > 112u) return sign | (exponent - 112u) << 10 | mantissa >> 13;
      return exponent == 0 ? 0u : sign | (0x800000u | mantissa) >> (126u - exponent);
    }
  }
  __builtin_unreachable();
}

// `max_bits`: canonical, not masked.
inline Scale ScaleAt(const kernels::RowParameters& parameters, u32 max_bits) {
  return MakeScale(max_bits, parameters.multiplier, parameters.exponent, parameters.window);
}

// The scale of the raw distribution, whose temperature is 1.
inline Scale UnitScale(u32 max_bits) { return ScaleOf(max_bits, UnitTemperature()); }

inline StageWords ToStageWords(const kernels::Stage& stage) {
  const auto [a, b, c, d] = stage.operands;
  return {u32(stage.kind), a, b, c, d};
}

// The most tokens that the row can keep.
inline u32 MostKept(const kernels::RowParameters& parameters, u32 live_vocabulary) {
  if (parameters.greedy) return 1;
  u32 most = live_vocabulary;
  if (parameters.top_k != 0) most = std::min(most, parameters.top_k);
  for (const kernels::Stage& stage : parameters.chain) {
    const StageWords words = ToStageWords(stage);
    const u32 cut = CutOf(words.kind);
    const bool counts = cut == kCutFirst || cut == kCutTerms || cut == kCutCliff;
    if (counts) most = std::min(most, std::max(FirstCount(words), LeastCount(words)));
  }
  return most;
}

inline DrawKey ToDrawKey(const kernels::NoiseKey& noise) {
  return {u32(noise.seed), u32(noise.seed >> 32), noise.position, noise.stream};
}

// Race keys as numbers: RaceKey's u64 holds a signed value.
inline int64_t SignedRaceKey(u32 t, u64 log) { return int64_t(RaceKey(t, log)); }

}  // namespace sortition::law

// The noise of a watermarked draw: a keyed hash of the tokens before it takes the place of seed, position and stream
// (WATERMARK.md). Pure and thread-safe; the same on every machine.
#pragma once

#include <cstdint>
#include <span>

#include "kernels/law/options.h"
#include "kernels/row.h"

namespace sortition::law {

inline constexpr uint32_t kDefaultWatermarkWidth = uint32_t(NumberNamed("watermark.context_width").value);
inline constexpr uint32_t kMaxWatermarkWidth = uint32_t(NumberNamed("watermark.context_width").most.value);

// `context`: the tokens before the draw, oldest first; the last `width` of them, or fewer where there are fewer.
kernels::NoiseKey WatermarkNoise(uint64_t key, std::span<const uint32_t> context);

}  // namespace sortition::law

// A chain of Philox blocks over the context.
#include "kernels/law/watermark.h"

#include "kernels/law/row_law.h"
#include "kernels/law/token_noise.h"

namespace sortition::law {
namespace {

constexpr u32 kWatermarkTag = 0x57u;

}  // namespace

kernels::NoiseKey WatermarkNoise(uint64_t key, std::span<const uint32_t> context) {
  u32 low = 0;
  u32 high = 0;
  for (const uint32_t token : context) {
    const PhiloxWords words = NoiseWords(low, kWatermarkTag, DrawKey{u32(key), u32(key >> 32), high, token});
    low = words.x;
    high = words.y;
  }
  return {uint64_t{high} << 32 | low, 0, 0};
}

}  // namespace sortition::law

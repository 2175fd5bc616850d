// A chain of Philox blocks over the context.
#include "kernels/law/watermark.h"

#include <cmath>

#include "kernels/law/row_law.h"
#include "kernels/law/token_noise.h"

namespace sortition::law {
namespace {

constexpr u32 kWatermarkTag = 0x57u;

}  // namespace

kernels::NoiseKey WatermarkNoise(uint64_t key, std::span<const uint32_t> context, uint32_t stream) {
  u32 low = 0;
  u32 high = 0;
  for (const uint32_t token : context) {
    const PhiloxWords words = NoiseWords(low, kWatermarkTag, DrawKey{u32(key), u32(key >> 32), high, token});
    low = words.x;
    high = words.y;
  }
  return {uint64_t{high} << 32 | low, 0, stream};
}

double WatermarkScore(const kernels::NoiseKey& noise, uint32_t token) {
  // L is log2 of -log2(1 - U), so E = 2^L ln 2.
  const double log = double(int64_t(TokenNoise(KeyOf(noise), token))) * 0x1p-32;
  return -std::log(-std::expm1(-std::exp2(log) * 0.69314718055994531));
}

}  // namespace sortition::law

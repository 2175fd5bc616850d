// Making of rows.
#include "client/bench/logits.h"

#include <bit>
#include <cmath>
#include <cstring>
#include <random>
#include <vector>

namespace sortition::bench {
namespace {

constexpr size_t kDistinctRows = 64;  // further rows repeat these at other addresses

uint32_t RoundedToBf16(float x) {
  const uint32_t bits = std::bit_cast<uint32_t>(x);
  return (bits + 0x7fff + (bits >> 16 & 1)) & 0xffff0000;
}

uint32_t RoundedToF16(float x) {
  const uint32_t sign = x < 0 ? 0x8000 : 0;
  const float size = std::fabs(x);
  if (size < 0x1p-14f) return sign | uint32_t(std::nearbyint(size * 0x1p24f));  // subnormal
  const uint32_t bits = std::bit_cast<uint32_t>(size);
  return sign | ((bits - (112u << 23) + 0xfff + (bits >> 13 & 1)) >> 13);
}

uint32_t ToBits(kernels::DType dtype, float x) {
  switch (dtype) {
    case kernels::DType::kF32:
      return std::bit_cast<uint32_t>(x);
    case kernels::DType::kF16:
      return RoundedToF16(x);
    case kernels::DType::kBF16:
      return RoundedToBf16(x) >> 16;
  }
  __builtin_unreachable();
}

void Fill(Shape shape, uint64_t seed, std::vector<float>* row) {
  std::mt19937_64 random(seed);
  std::normal_distribution<float> normal;
  const auto size = uint32_t(row->size());
  if (shape == Shape::kOneAGroup) {
    for (float& x : *row) x = -60;
    for (uint32_t group = 0; group < size; group += 64) (*row)[group + random() % std::min(64u, size - group)] = 10;
    return;
  }
  const float spread = shape == Shape::kFlat ? 0.05f : 2.5f;
  for (float& x : *row) x = spread * normal(random);
  if (shape == Shape::kFlat) return;
  const float first = shape == Shape::kSoft ? 14 : 20;
  for (int rank = 1; rank <= 300; ++rank)
    (*row)[random() % size] = first - 1.5f * std::log(float(rank)) + 0.3f * normal(random);
  if (shape != Shape::kTies) return;
  for (float& x : *row) x = 0.5f * std::round(2 * x);
}

}  // namespace

Logits::Logits(Shape shape, kernels::DType dtype, size_t count, uint32_t vocabulary)
    : dtype_(dtype), count_(count), vocabulary_(vocabulary), lines_a_row_((row_bytes() + 63) / 64) {
  lines_.reset(new CacheLine[lines_a_row_ * count]());
  std::vector<float> values(vocabulary);
  for (size_t index = 0; index < count; ++index) {
    std::byte* const bytes = lines_[index * lines_a_row_].bytes;
    if (index >= kDistinctRows) {
      std::memcpy(bytes, row(index - kDistinctRows), row_bytes());
      continue;
    }
    Fill(shape, index, &values);
    for (uint32_t id = 0; id < vocabulary; ++id) {
      const uint32_t bits = ToBits(dtype, values[id]);
      std::memcpy(bytes + size_t{id} * kernels::ElementBytes(dtype), &bits, kernels::ElementBytes(dtype));
    }
  }
}

void Warm(const Logits& logits, size_t index) {
  // Twice: the second reading meets the lines that the first one's beginning pushed out.
  for (int pass = 0; pass < 2; ++pass) {
    for (size_t at = 0; at < logits.row_bytes(); at += 64) {
      const std::byte* const line = logits.row(index) + at;
      asm volatile("" ::"r"(*line));
    }
  }
}

}  // namespace sortition::bench

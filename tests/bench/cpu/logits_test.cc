// The benchmarks' rows have the properties that their shapes' names promise.
#include "client/bench/logits.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <set>

#include "kernels/law/row_law.h"

namespace sortition::bench::logits_test {
namespace {

constexpr uint32_t kVocabulary = 20'000;

size_t DistinctValues(Shape shape, kernels::DType dtype) {
  const Logits logits(shape, dtype, 1, kVocabulary);
  std::set<uint32_t> values;
  for (uint32_t id = 0; id < kVocabulary; ++id) {
    uint32_t bits = 0;
    std::memcpy(&bits, logits.row(0) + size_t{id} * kernels::ElementBytes(dtype), kernels::ElementBytes(dtype));
    values.insert(bits);
  }
  return values.size();
}

// bf16 has a few hundred values between 4 and 20 itself: rows with ties must have fewer than that gives.
TEST(BenchRows, TiesHoldManyTokensInEveryType) {
  EXPECT_LE(DistinctValues(Shape::kTies, kernels::DType::kBF16), 80u);
  EXPECT_LE(DistinctValues(Shape::kTies, kernels::DType::kF32), 80u);
  EXPECT_GE(DistinctValues(Shape::kPeaked, kernels::DType::kBF16), 800u);
  EXPECT_GE(DistinctValues(Shape::kPeaked, kernels::DType::kF32), 18'000u);
}

TEST(BenchRows, HalfRowsAreTheNearestToFloatRows) {
  const Logits floats(Shape::kPeaked, kernels::DType::kF32, 1, kVocabulary);
  const Logits halves(Shape::kPeaked, kernels::DType::kF16, 1, kVocabulary);
  for (uint32_t id = 0; id < kVocabulary; ++id) {
    float value;
    uint16_t bits;
    std::memcpy(&value, floats.row(0) + size_t{id} * 4, 4);
    std::memcpy(&bits, halves.row(0) + size_t{id} * 2, 2);
    const auto near = [](uint32_t half) { return std::bit_cast<float>(law::Widen(kernels::DType::kF16, half)); };
    const float distance = std::fabs(near(bits) - value);
    EXPECT_LE(distance, std::fabs(near(bits + 1u) - value)) << value;
    EXPECT_LE(distance, std::fabs(near(bits - 1u) - value)) << value;
  }
}

TEST(BenchRows, RowsOfAShapeDiffer) {
  for (const Shape shape : {Shape::kPeaked, Shape::kSoft, Shape::kFlat, Shape::kTies, Shape::kOneAGroup}) {
    const Logits logits(shape, kernels::DType::kBF16, 2, kVocabulary);
    EXPECT_NE(std::memcmp(logits.row(0), logits.row(1), logits.row_bytes()), 0);
  }
}

}  // namespace
}  // namespace sortition::bench::logits_test

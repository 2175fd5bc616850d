// Rows of logits for measurements: some like a language model's, others the hardest for a sampler.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "kernels/row.h"

namespace sortition::bench {

enum class Shape {
  kPeaked,     // a normal bulk, and 300 tokens above it with probabilities by a power law
  kSoft,       // like kPeaked, but the 300 tokens are 6 lower: the bulk has about half of the mass
  kFlat,       // all tokens almost alike
  kTies,       // like kPeaked, on a grid of 0.5: most values occur at many tokens
  kOneAGroup,  // one token in each group of 64 consecutive ones shares the maximum, the others are out of reach
};

// `count` rows of `vocabulary` logits, each different, in memory that starts at a cache line; row strides are whole
// cache lines, too. A pure function of its arguments.
class Logits {
 public:
  Logits(Shape shape, kernels::DType dtype, size_t count, uint32_t vocabulary);

  size_t count() const { return count_; }
  uint32_t vocabulary() const { return vocabulary_; }
  kernels::DType dtype() const { return dtype_; }
  const std::byte* row(size_t index) const { return lines_[index * lines_a_row_].bytes; }
  size_t row_bytes() const { return size_t{vocabulary_} * kernels::ElementBytes(dtype_); }

 private:
  struct alignas(64) CacheLine {
    std::byte bytes[64];
  };
  kernels::DType dtype_;
  size_t count_;
  uint32_t vocabulary_;
  size_t lines_a_row_;
  std::unique_ptr<CacheLine[]> lines_;
};

// Reads every byte of a row, so that the caches hold it as far as they can.
void Warm(const Logits& logits, size_t index);

}  // namespace sortition::bench

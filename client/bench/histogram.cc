// Buckets: each power of two in equal parts.
#include "client/bench/histogram.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "kernels/check.h"

namespace sortition::bench {

size_t Histogram::BucketOf(uint64_t time) {
  constexpr uint64_t kParts = uint64_t{1} << kPartBits;
  if (time < kParts) return time;
  const int shift = std::bit_width(time) - 1 - kPartBits;
  return (static_cast<size_t>(shift) << kPartBits) + (time >> shift);
}

uint64_t Histogram::LastOf(size_t bucket) {
  constexpr uint64_t kParts = uint64_t{1} << kPartBits;
  if (bucket < kParts) return bucket;
  const uint64_t shift = (bucket >> kPartBits) - 1;
  return ((kParts + (bucket & (kParts - 1)) + 1) << shift) - 1;
}

void Histogram::Add(uint64_t time, uint64_t times) {
  time = std::min(time, (uint64_t{1} << kMostBits) - 1);
  counts_[BucketOf(time)] += times;
  count_ += times;
  if (times > 0) max_ = std::max(max_, time);
}

void Histogram::Merge(const Histogram& other) {
  for (size_t i = 0; i < kBuckets; ++i) counts_[i] += other.counts_[i];
  count_ += other.count_;
  max_ = std::max(max_, other.max_);
}

Histogram Histogram::Since(const Histogram& before) const {
  Histogram since;
  for (size_t i = 0; i < kBuckets; ++i) {
    SORTITION_CHECK(counts_[i] >= before.counts_[i]);
    since.Add(std::min(LastOf(i), max_), counts_[i] - before.counts_[i]);
  }
  return since;
}

Histogram Histogram::Corrected(uint64_t interval) const {
  Histogram corrected = *this;
  if (interval == 0) return corrected;
  for (size_t i = 0; i < kBuckets; ++i) {
    if (counts_[i] == 0) continue;
    for (uint64_t time = std::min(LastOf(i), max_); time >= 2 * interval; time -= interval) {
      corrected.Add(time - interval, counts_[i]);
    }
  }
  return corrected;
}

uint64_t Histogram::Percentile(double percent) const {
  const auto wanted = static_cast<uint64_t>(std::ceil(percent / 100 * static_cast<double>(count_)));
  uint64_t seen = 0;
  for (size_t i = 0; i < kBuckets; ++i) {
    seen += counts_[i];
    if (seen > 0 && seen >= wanted) return std::min(LastOf(i), max_);
  }
  return 0;
}

}  // namespace sortition::bench

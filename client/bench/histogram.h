// A histogram is counts of times, from which percentiles are read.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace sortition::bench {

// Holds times of up to two hours within 0.8 %, in 37 KB. Longer ones count as two hours. Times are nanoseconds. Not
// thread-safe.
class Histogram {
 public:
  void Add(uint64_t time, uint64_t times = 1);
  void Merge(const Histogram& other);

  // Returns the times added since `before`, an earlier copy of this histogram.
  Histogram Since(const Histogram& before) const;

  // Returns a copy with the times that are missing because their sender waited for a longer one. Each time T adds T -
  // interval, T - 2 interval, ..., down to the interval.
  Histogram Corrected(uint64_t interval) const;

  uint64_t count() const { return count_; }
  uint64_t max() const { return max_; }
  // Returns a time that `percent` of the times do not exceed, 0 to 100. 0 if there is none.
  uint64_t Percentile(double percent) const;

 private:
  static constexpr int kPartBits = 7;  // parts of a power of two: 2^7
  static constexpr int kMostBits = 43;
  static constexpr size_t kBuckets = size_t{kMostBits - kPartBits + 1} << kPartBits;
  static size_t BucketOf(uint64_t time);
  static uint64_t LastOf(size_t bucket);  // the longest time of a bucket

  std::array<uint64_t, kBuckets> counts_ = {};
  uint64_t count_ = 0;
  uint64_t max_ = 0;
};

}  // namespace sortition::bench

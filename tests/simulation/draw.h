// Random choices of a simulation. Each depends only on its subject, so if one event is left out, no later choice
// changes.
#pragma once

#include <cstdint>
#include <initializer_list>

namespace sortition::simulation {

// Subject of a choice; the first word of its key.
enum class Choice : uint64_t {
  kWorld = 1,
  kFault,
  kRequestDelay,
  kAnswerDelay,
  kLinger,
  kServiceTime,
  kSeed,
  kThought,
  kBatch,
  kSequence,
  kStep,
  kRow,
  kPause,
  kUpload,
  kRanks,
  kSilence,
  kPolicy,
};

// A uniform word for (seed, choice, key).
inline uint64_t Draw(uint64_t seed, Choice choice, std::initializer_list<uint64_t> key) {
  const auto mix = [](uint64_t x) {
    x += 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
  };
  uint64_t word = mix(mix(seed) ^ static_cast<uint64_t>(choice));
  for (uint64_t part : key) word = mix(word ^ part);
  return word;
}

// Successive words of one choice.
class Draws {
 public:
  Draws(uint64_t seed, Choice choice, std::initializer_list<uint64_t> key) : word_(Draw(seed, choice, key)) {}
  uint64_t Next() { return Draw(word_, Choice::kWorld, {++count_}); }
  // Returns a number in [0, bound); bound > 0.
  uint32_t Below(uint64_t bound) { return static_cast<uint32_t>(Next() % bound); }
  // Returns a number in [low, high].
  uint32_t Between(uint32_t low, uint32_t high) { return low + Below(high - low + 1); }
  bool OneIn(uint64_t n) { return Next() % n == 0; }

 private:
  const uint64_t word_;
  uint64_t count_ = 0;
};

}  // namespace sortition::simulation

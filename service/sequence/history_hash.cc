// The history hash: a chain of 64-bit mixes.
#include "service/sequence/history_hash.h"

#include <bit>

namespace sortition::service {
namespace {

constexpr uint64_t kStart = 0x736f72746974696fu;  // "sortitio"
constexpr uint64_t kIncrement = 0x9e3779b97f4a7c15u;

// SplitMix64's output function: a bijection whose every output bit depends on every input bit.
constexpr uint64_t Mix(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

constexpr uint64_t Absorb(uint64_t hash, uint64_t word) { return Mix((hash ^ word) + kIncrement); }

}  // namespace

uint64_t EmptyHistoryHash(const SequenceSpec& spec) {
  const uint64_t words[] = {
      spec.law_version,
      spec.seed,
      spec.choice_index,
      spec.vocabulary,
      spec.live_vocabulary,
      std::bit_cast<uint32_t>(spec.repetition_penalty),
      std::bit_cast<uint32_t>(spec.frequency_penalty),
      std::bit_cast<uint32_t>(spec.presence_penalty),
  };
  uint64_t hash = kStart;
  for (uint64_t word : words) hash = Absorb(hash, word);
  return hash;
}

uint64_t ExtendHistoryHash(uint64_t hash, uint32_t token) { return Absorb(hash, token); }

}  // namespace sortition::service

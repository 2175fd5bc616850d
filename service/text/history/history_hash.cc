// The history hash: a sequence of 64-bit mixes.
#include "service/text/history/history_hash.h"

#include <bit>

namespace sortition::service {
namespace {

constexpr uint64_t kIncrement = 0x9e3779b97f4a7c15u;

// SplitMix64's output function: a bijection in which every output bit depends on every input bit.
constexpr uint64_t Mix(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

constexpr uint64_t Absorb(uint64_t hash, uint64_t word) { return Mix((hash ^ word) + kIncrement); }

}  // namespace

uint64_t ExtendTokenHash(uint64_t token_hash, uint32_t token) { return Absorb(token_hash, token); }

uint64_t HistoryDigest(const HistoryIdentity& identity) {
  const uint64_t words[] = {
      identity.law_version,
      identity.seed,
      identity.choice_index,
      identity.vocabulary,
      identity.live_vocabulary,
      std::bit_cast<uint32_t>(identity.repetition_penalty),
      std::bit_cast<uint32_t>(identity.frequency_penalty),
      std::bit_cast<uint32_t>(identity.presence_penalty),
  };
  uint64_t digest = kEmptyHash;
  for (uint64_t word : words) digest = Absorb(digest, word);
  for (uint64_t word : identity.options) digest = Absorb(digest, word);
  return digest;
}

uint64_t HistoryHash(uint64_t token_hash, uint32_t prompt_length, uint64_t digest) {
  return Absorb(Absorb(token_hash, prompt_length), digest);
}

}  // namespace sortition::service

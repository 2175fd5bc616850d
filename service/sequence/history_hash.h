// The 64-bit hash that ties a step to the history it was computed for. Algorithm and test vectors:
// proto/history_hash.md.
#pragma once

#include <cstdint>
#include <vector>

namespace sortition::service {

// All but its tokens that must be equal for a history to mean the same. Penalties are 1, 0 and 0 when off.
struct HistoryIdentity {
  uint32_t law_version = 0;
  uint64_t seed = 0;
  uint32_t choice_index = 0;
  uint32_t vocabulary = 0;
  uint32_t live_vocabulary = 0;
  float repetition_penalty = 1;
  float frequency_penalty = 0;
  float presence_penalty = 0;
  std::vector<uint64_t> options;  // HistoryOptions::Words
};

// The chain over the tokens alone, so that sequences that share tokens share it: forks go on from their parent's.
inline constexpr uint64_t kEmptyHash = 0x736f72746974696f;  // "sortitio"
uint64_t ExtendChain(uint64_t chain, uint32_t token);

uint64_t HistoryDigest(const HistoryIdentity& identity);

// The hash of a history: of its tokens' chain, of how many of them are prompt, and of its identity's digest.
uint64_t HistoryHash(uint64_t chain, uint32_t prompt_length, uint64_t digest);

}  // namespace sortition::service

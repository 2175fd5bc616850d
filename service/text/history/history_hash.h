// The 64-bit hash that ties a step to the history that it was computed for. Algorithm and test vectors:
// proto/history_hash.md.
#pragma once

#include <cstdint>
#include <vector>

namespace sortition::service {

// All that must be equal, besides the tokens, for two histories to mean the same. Penalties are 1, 0 and 0 when off.
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

// Hash of no tokens. ExtendTokenHash adds a token; a fork continues from the value of its parent.
inline constexpr uint64_t kEmptyHash = 0x736f72746974696f;  // "sortitio"
uint64_t ExtendTokenHash(uint64_t token_hash, uint32_t token);

uint64_t HistoryDigest(const HistoryIdentity& identity);

// Hash of a history, from its tokens, its prompt's length, and its identity's digest.
uint64_t HistoryHash(uint64_t token_hash, uint32_t prompt_length, uint64_t digest);

}  // namespace sortition::service

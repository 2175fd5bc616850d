// A sequence's state as plain data, on its way to another process.
#pragma once

#include <cstdint>
#include <vector>

namespace sortition::service {

// Version of the wire format (proto/sortition/v1/sequence_snapshot.proto).
inline constexpr uint32_t kSnapshotFormat = 1;

// Size is O(distinct tokens + kept history), like the state's. The options are not part of it.
struct SequenceSnapshot {
  uint32_t prompt_length = 0;
  uint64_t history_hash = 0;
  // Tokens before `kept_from`, a multiple of TokenLog::kChunkTokens, are known only by their hash and counts.
  uint32_t kept_from = 0;
  uint64_t hash_before = 0;
  std::vector<uint32_t> kept;  // tokens from kept_from
  // Counts of all tokens that penalties count: parallel lists, by ascending token. Empty if `kept` suffices to find
  // them.
  std::vector<uint32_t> tokens;
  std::vector<uint32_t> in_history;
  std::vector<uint32_t> in_output;
  // The phase at the lowest truncation of the kept tokens, and where it began. 0 if all tokens are kept.
  uint32_t phase = 0;
  uint32_t phase_from = 0;
};

}  // namespace sortition::service

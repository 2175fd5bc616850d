// The 64-bit hash that ties a step to the history it was computed for. Algorithm and test vectors:
// proto/history_hash.md.
#pragma once

#include <cstdint>

#include "service/sequence/sequence_spec.h"

namespace sortition::service {

// Hash of the empty history of a sequence: a digest of all that must be equal for a history to mean the same.
uint64_t EmptyHistoryHash(const SequenceSpec& spec);

// Hash of a history with one more token.
uint64_t ExtendHistoryHash(uint64_t hash, uint32_t token);

}  // namespace sortition::service

// The last tokens of a history and the chain of its hash, so that it can be cut back without being known as a whole.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "service/sequence/history_hash.h"

namespace sortition::service {

// Not thread-safe. A copy shares what is old and copies at most kChunkTokens tokens; neither sees the other's changes.
class TokenLog {
 public:
  static constexpr uint32_t kChunkTokens = 64;

  uint32_t length() const { return length_; }
  uint64_t chain() const { return chain_; }
  // Tokens before this position are not known any more, so the log cannot be cut below it.
  uint32_t kept_from() const { return kept_from_; }
  // kept_from() <= position < length().
  uint32_t at(uint32_t position) const;

  void Push(uint32_t token);
  // kept_from() <= position <= length(). O(kChunkTokens).
  void Truncate(uint32_t position);
  // Forgets old tokens, but at least `kept` remain, or all there are.
  void Trim(uint32_t kept);

  // As if `kept_from` tokens with this chain had been pushed and trimmed; of an empty log only. A multiple of
  // kChunkTokens.
  void StartAt(uint32_t kept_from, uint64_t chain);

  uint64_t bytes() const;  // beside the object itself; shared parts count fully

 private:
  struct Chunk {
    uint64_t chain_before = kEmptyHash;
    uint32_t tokens[kChunkTokens] = {};
  };

  uint32_t kept_from_ = 0;  // a multiple of kChunkTokens
  uint32_t length_ = 0;
  uint64_t chain_ = kEmptyHash;
  std::vector<std::shared_ptr<const Chunk>> full_;  // from kept_from_ on; never changed, so copies may share them
  Chunk open_;                                      // what follows them; fewer than kChunkTokens tokens
};

}  // namespace sortition::service

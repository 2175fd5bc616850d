// The last tokens of a history and the hash of all its tokens, so that it can be cut back without the whole history.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "service/text/history/history_hash.h"

namespace sortition::service {

// Not thread-safe. A copy shares old chunks and copies at most kChunkTokens tokens; the two are independent.
class TokenLog {
 public:
  static constexpr uint32_t kChunkTokens = 64;

  uint32_t length() const { return length_; }
  uint64_t token_hash() const { return token_hash_; }
  // Tokens before this position are forgotten, so the log cannot be cut below it.
  uint32_t kept_from() const { return kept_from_; }
  // The parts that a copy shares, each of kChunkTokens tokens.
  uint64_t chunks() const { return full_.size(); }
  // Requires kept_from() <= position < length().
  uint32_t at(uint32_t position) const { return ChunkOf(position).tokens[position % kChunkTokens]; }
  // Returns the last tokens before `end` that lie together in memory: at least one, at most kChunkTokens. Valid until
  // the log changes. Requires kept_from() < end <= length().
  std::span<const uint32_t> EndingAt(uint32_t end) const {
    return {ChunkOf(end - 1).tokens, (end - 1) % kChunkTokens + 1};
  }
  // Returns the tokens from `begin` that lie together, likewise. Requires kept_from() <= begin < length().
  std::span<const uint32_t> StartingAt(uint32_t begin) const {
    const uint32_t offset = begin % kChunkTokens;
    return {ChunkOf(begin).tokens + offset, std::min(kChunkTokens - offset, length_ - begin)};
  }
  // Returns how many tokens before `a` and before `b` are alike, at most `most`, which both have.
  uint32_t CommonEnd(uint32_t a, uint32_t b, uint32_t most) const;
  // Returns true if these are the last tokens before `end`. Requires kept_from() + tokens.size() <= end <= length().
  bool EndsIn(std::span<const uint32_t> tokens, uint32_t end) const;

  void Push(uint32_t token);
  // Requires kept_from() <= position <= length(). O(kChunkTokens).
  void Truncate(uint32_t position);
  // Forgets old tokens; at least `kept` remain, or all there are.
  void Trim(uint32_t kept);

  uint64_t bytes() const;  // without the object itself; shared parts count fully

 private:
  struct Chunk {
    uint64_t hash_before = kEmptyHash;
    uint32_t tokens[kChunkTokens] = {};
  };

  const Chunk& ChunkOf(uint32_t position) const {
    const uint32_t chunk = (position - kept_from_) / kChunkTokens;
    return chunk < full_.size() ? *full_[chunk] : open_;
  }

  uint32_t kept_from_ = 0;  // a multiple of kChunkTokens
  uint32_t length_ = 0;
  uint64_t token_hash_ = kEmptyHash;
  std::vector<std::shared_ptr<const Chunk>> full_;  // from kept_from_; immutable, so copies share them
  Chunk open_;                                      // the tokens after them, fewer than kChunkTokens
};

}  // namespace sortition::service

// Chunks of tokens, each with the hash of the tokens before it.
#include "service/text/history/token_log.h"

#include <algorithm>

#include "kernels/check.h"

namespace sortition::service {

uint32_t TokenLog::CommonEnd(uint32_t a, uint32_t b, uint32_t most) const {
  uint32_t common = 0;
  while (common < most) {
    const std::span<const uint32_t> of_a = EndingAt(a - common);
    const std::span<const uint32_t> of_b = EndingAt(b - common);
    const uint32_t end =
        common + std::min({static_cast<uint32_t>(of_a.size()), static_cast<uint32_t>(of_b.size()), most - common});
    for (const uint32_t *x = &of_a.back(), *y = &of_b.back(); common < end; ++common, --x, --y) {
      if (*x != *y) return common;
    }
  }
  return common;
}

bool TokenLog::EndsIn(std::span<const uint32_t> tokens, uint32_t end) const {
  while (!tokens.empty()) {
    const std::span<const uint32_t> run = EndingAt(end);
    const size_t count = std::min(run.size(), tokens.size());
    if (!std::ranges::equal(run.last(count), tokens.last(count))) return false;
    tokens = tokens.first(tokens.size() - count);
    end -= static_cast<uint32_t>(count);
  }
  return true;
}

void TokenLog::Push(uint32_t token) {
  open_.tokens[length_ % kChunkTokens] = token;
  token_hash_ = ExtendTokenHash(token_hash_, token);
  ++length_;
  if (length_ % kChunkTokens != 0) return;
  full_.push_back(std::make_shared<const Chunk>(open_));
  open_.hash_before = token_hash_;
}

void TokenLog::Truncate(uint32_t position) {
  SORTITION_CHECK(position >= kept_from_ && position <= length_);
  const uint32_t chunk = (position - kept_from_) / kChunkTokens;
  if (chunk < full_.size()) {
    open_ = *full_[chunk];
    full_.resize(chunk);
  }
  length_ = position;
  token_hash_ = open_.hash_before;
  for (uint32_t i = 0; i < position % kChunkTokens; ++i) token_hash_ = ExtendTokenHash(token_hash_, open_.tokens[i]);
}

void TokenLog::Trim(uint32_t kept) {
  if (length_ - kept_from_ < uint64_t{kept} + kChunkTokens) return;
  const uint32_t chunks = (length_ - kept_from_ - kept) / kChunkTokens;
  full_.erase(full_.begin(), full_.begin() + chunks);
  kept_from_ += chunks * kChunkTokens;
}

uint64_t TokenLog::bytes() const {
  constexpr uint64_t kControlBlock = 16;
  return full_.capacity() * sizeof(full_[0]) + full_.size() * (sizeof(Chunk) + kControlBlock);
}

}  // namespace sortition::service

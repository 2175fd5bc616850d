// Incremental history, counts and penalty patches of one sequence.
#include "service/sequence/sequence_state.h"

#include <algorithm>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "kernels/check.h"
#include "kernels/law/parameters.h"
#include "service/sequence/history_hash.h"

namespace sortition::service {
namespace {

// The hash is kept at every position divisible by this, so that truncating re-hashes fewer tokens than this.
constexpr uint32_t kMarkSpacing = 64;

}  // namespace

SequenceState::SequenceState(std::shared_ptr<const SequenceSpec> spec, std::span<const uint32_t> tokens,
                             uint32_t prompt_length, uint32_t kept_history)
    : spec_(std::move(spec)),
      kept_history_(kept_history),
      prompt_length_(prompt_length),
      hash_(EmptyHistoryHash(*spec_)),
      patches_(std::make_shared<std::vector<kernels::TokenPatch>>(spec_->listed_patches)),
      counts_(patches_->size()) {
  SORTITION_CHECK(prompt_length <= tokens.size());
  marks_.push_back(hash_);
  CountAll(tokens);
  for (uint32_t token : tokens) PushToken(token);
}

uint64_t SequenceState::bytes() const {
  return sizeof(*this) + tokens_.capacity() * sizeof(uint32_t) + marks_.capacity() * sizeof(uint64_t) +
         patches_->capacity() * sizeof(kernels::TokenPatch) + counts_.capacity() * sizeof(Count);
}

void SequenceState::Append(uint32_t token) {
  CountToken(token, +1, position_ >= prompt_length_);
  PushToken(token);
}

void SequenceState::PushToken(uint32_t token) {
  tokens_.push_back(token);
  hash_ = ExtendHistoryHash(hash_, token);
  ++position_;
  if (position_ % kMarkSpacing == 0) marks_.push_back(hash_);
  TrimKept();
}

SequenceState::Undo SequenceState::Edit(std::optional<uint32_t> truncate_to, std::span<const uint32_t> append) {
  Undo undo;
  if (truncate_to && *truncate_to < position_) {
    undo.removed.assign(tokens_.end() - (position_ - *truncate_to), tokens_.end());
    Truncate(*truncate_to);
  }
  for (uint32_t token : append) Append(token);
  undo.appended = static_cast<uint32_t>(append.size());
  return undo;
}

void SequenceState::Revert(const Undo& undo) {
  Truncate(position_ - undo.appended);
  for (uint32_t token : undo.removed) Append(token);
}

void SequenceState::Truncate(uint32_t position) {
  SORTITION_CHECK(position >= kept_from_ && position <= position_);
  const uint64_t hash = HashAt(position);
  while (position_ > position) {
    --position_;
    CountToken(tokens_.back(), -1, position_ >= prompt_length_);
    tokens_.pop_back();
  }
  hash_ = hash;
  marks_.resize(position / kMarkSpacing - first_mark_ + 1);
}

uint64_t SequenceState::HashAt(uint32_t position) const {
  const uint32_t mark = position / kMarkSpacing;
  uint64_t hash = marks_[mark - first_mark_];
  for (uint32_t at = mark * kMarkSpacing; at < position; ++at) hash = ExtendHistoryHash(hash, tokens_[at - kept_from_]);
  return hash;
}

kernels::TokenPatch SequenceState::PatchFor(kernels::TokenPatch listed, Count count) const {
  kernels::TokenPatch patch = listed;
  const bool repeated = spec_->repetition_penalty != 1 && count.in_history > 0;
  patch.flags = listed.flags & kernels::TokenPatch::kBanned;
  if (repeated) patch.flags |= kernels::TokenPatch::kRepeated;
  const bool penalised = spec_->frequency_penalty != 0 || spec_->presence_penalty != 0;
  patch.penalty = penalised && count.in_output > 0
                      ? law::PenaltyBits(spec_->frequency_penalty, spec_->presence_penalty, count.in_output)
                      : 0;
  return patch;
}

void SequenceState::CountAll(std::span<const uint32_t> tokens) {
  // Sorting once is O(n log n); inserting one by one would move the sorted lists for every new token.
  absl::flat_hash_map<uint32_t, Count> counts;
  for (size_t i = 0; i < tokens.size(); ++i) {
    Count& count = counts[tokens[i]];
    ++count.in_history;
    if (i >= prompt_length_) ++count.in_output;
  }
  absl::flat_hash_map<uint32_t, kernels::TokenPatch> listed;
  for (const kernels::TokenPatch& patch : *patches_) {
    listed[patch.token] = patch;
    counts[patch.token];
  }
  std::vector<uint32_t> distinct;
  distinct.reserve(counts.size());
  for (const auto& [token, count] : counts) distinct.push_back(token);
  std::ranges::sort(distinct);
  patches_->clear();
  counts_.clear();
  for (uint32_t token : distinct) {
    const auto it = listed.find(token);
    patches_->push_back(PatchFor(it == listed.end() ? kernels::TokenPatch{.token = token} : it->second, counts[token]));
    counts_.push_back(counts[token]);
  }
}

void SequenceState::CountToken(uint32_t token, int32_t change, bool output) {
  const auto at = std::ranges::lower_bound(*patches_, token, {}, &kernels::TokenPatch::token);
  const ptrdiff_t index = at - patches_->begin();
  const bool known = at != patches_->end() && at->token == token;
  Count count = known ? counts_[index] : Count{};
  count.in_history += change;
  if (output) count.in_output += change;
  const kernels::TokenPatch patch = PatchFor(known ? *at : kernels::TokenPatch{.token = token}, count);
  const bool listed = patch.bias != 0 || (patch.flags & kernels::TokenPatch::kBanned) != 0;
  const bool gone = count.in_history == 0 && !listed;

  if (known && !gone && patch == *at) {
    counts_[index] = count;
    return;
  }
  if (shared_) {
    patches_ = std::make_shared<std::vector<kernels::TokenPatch>>(*patches_);
    shared_ = false;
  }
  if (gone) {
    patches_->erase(patches_->begin() + index);
    counts_.erase(counts_.begin() + index);
  } else if (known) {
    (*patches_)[index] = patch;
    counts_[index] = count;
  } else {
    patches_->insert(patches_->begin() + index, patch);
    counts_.insert(counts_.begin() + index, count);
  }
}

void SequenceState::TrimKept() {
  // Twice the promised length is let grow and then halved, so that trimming costs O(1) a token.
  if (tokens_.size() < 2 * static_cast<size_t>(kept_history_) + kMarkSpacing) return;
  const uint32_t mark = (position_ - kept_history_) / kMarkSpacing;
  const uint32_t from = mark * kMarkSpacing;
  tokens_.erase(tokens_.begin(), tokens_.begin() + (from - kept_from_));
  marks_.erase(marks_.begin(), marks_.begin() + (mark - first_mark_));
  kept_from_ = from;
  first_mark_ = mark;
}

}  // namespace sortition::service

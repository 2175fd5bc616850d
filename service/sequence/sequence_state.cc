// Incremental history, counts and penalty patches of one sequence.
#include "service/sequence/sequence_state.h"

#include <algorithm>
#include <utility>

#include "kernels/check.h"
#include "kernels/law/parameters.h"

namespace sortition::service {
namespace {

using kernels::TokenPatch;

TokenPatch PatchFor(const SequenceSpec& spec, TokenPatch listed, TokenCount count) {
  TokenPatch patch = listed;
  patch.flags = listed.flags & TokenPatch::kBanned;
  if (spec.repetition_penalty != 1 && count.in_history > 0) patch.flags |= TokenPatch::kRepeated;
  const bool penalised = (spec.frequency_penalty != 0 || spec.presence_penalty != 0) && count.in_output > 0;
  patch.penalty = penalised ? law::PenaltyBits(spec.frequency_penalty, spec.presence_penalty, count.in_output) : 0;
  return patch;
}

bool Listed(const TokenPatch& patch) { return patch.bias != 0 || (patch.flags & TokenPatch::kBanned) != 0; }

// Whether equal counts give equal patches.
bool SamePatches(const SequenceSpec& a, const SequenceSpec& b) {
  return a.repetition_penalty == b.repetition_penalty && a.frequency_penalty == b.frequency_penalty &&
         a.presence_penalty == b.presence_penalty && a.listed_patches == b.listed_patches;
}

}  // namespace

void SequenceState::Builder::Add(std::span<const uint32_t> tokens) {
  for (uint32_t token : tokens) {
    TokenCount& count = counts_[token];
    ++count.in_history;
    if (log_.length() >= prompt_length_) ++count.in_output;
    log_.Push(token);
    if (log_.length() % TokenLog::kChunkTokens == 0) log_.Trim(kept_history_);
  }
}

std::unique_ptr<SequenceState> SequenceState::Builder::Finish(std::shared_ptr<const SequenceSpec> spec) {
  SORTITION_CHECK(prompt_length_ <= log_.length());
  return std::unique_ptr<SequenceState>(
      new SequenceState(std::move(spec), std::move(log_), prompt_length_, kept_history_, counts_));
}

std::unique_ptr<SequenceState> SequenceState::Build(std::shared_ptr<const SequenceSpec> spec,
                                                    std::span<const uint32_t> tokens, uint32_t prompt_length,
                                                    uint32_t kept_history) {
  Builder builder(prompt_length, kept_history);
  builder.Add(tokens);
  return builder.Finish(std::move(spec));
}

SequenceState::SequenceState(std::shared_ptr<const SequenceSpec> spec, TokenLog log, uint32_t prompt_length,
                             uint32_t kept_history, const absl::flat_hash_map<uint32_t, TokenCount>& counts)
    : spec_(std::move(spec)),
      kept_history_(kept_history),
      digest_(HistoryDigest(spec_->Identity())),
      prompt_length_(prompt_length),
      log_(std::move(log)),
      counted_(Count(*spec_, counts)) {}

std::shared_ptr<SequenceState::Counted> SequenceState::Count(const SequenceSpec& spec,
                                                             const absl::flat_hash_map<uint32_t, TokenCount>& counts) {
  std::vector<TokenPatch> listed = spec.listed_patches;
  for (const auto& [token, count] : counts) {
    if (!std::ranges::binary_search(spec.listed_patches, token, {}, &TokenPatch::token)) {
      listed.push_back(TokenPatch{.token = token});
    }
  }
  std::ranges::sort(listed, {}, &TokenPatch::token);
  auto counted = std::make_shared<Counted>();
  counted->patches.reserve(listed.size());
  counted->counts.reserve(listed.size());
  for (const TokenPatch& patch : listed) {
    const auto it = counts.find(patch.token);
    const TokenCount count = it == counts.end() ? TokenCount{} : it->second;
    counted->patches.push_back(PatchFor(spec, patch, count));
    counted->counts.push_back(count);
  }
  return counted;
}

uint64_t SequenceState::bytes() const {
  return sizeof(*this) + log_.bytes() + sizeof(Counted) + counted_->patches.capacity() * sizeof(TokenPatch) +
         counted_->counts.capacity() * sizeof(TokenCount);
}

std::shared_ptr<const std::vector<TokenPatch>> SequenceState::LendPatches() {
  lent_ = true;
  return {counted_, &counted_->patches};
}

void SequenceState::LeaveLoan() {
  shared_ |= lent_;
  lent_ = false;
}

SequenceState::Counted& SequenceState::Own() {
  if (lent_ || shared_) {
    counted_ = std::make_shared<Counted>(*counted_);
    lent_ = shared_ = false;
  }
  return *counted_;
}

void SequenceState::Append(uint32_t token) {
  Push(token);
  log_.Trim(kept_history_);
}

void SequenceState::Push(uint32_t token) {
  CountToken(token, +1, position() >= prompt_length_);
  log_.Push(token);
}

SequenceState::Undo SequenceState::Edit(std::optional<uint32_t> truncate_to, std::span<const uint32_t> append) {
  Undo undo;
  undo.prompt_length = prompt_length_;
  if (truncate_to && *truncate_to < position()) {
    for (uint32_t at = *truncate_to; at < position(); ++at) undo.removed.push_back(log_.at(at));
    Truncate(*truncate_to);
  }
  for (uint32_t token : append) Push(token);
  undo.appended = static_cast<uint32_t>(append.size());
  return undo;
}

void SequenceState::Revert(const Undo& undo) {
  Truncate(position() - undo.appended);
  prompt_length_ = undo.prompt_length;
  for (uint32_t token : undo.removed) Push(token);
}

void SequenceState::Truncate(uint32_t to) {
  SORTITION_CHECK(to >= lowest_truncation() && to <= position());
  for (uint32_t at = to; at < position(); ++at) CountToken(log_.at(at), -1, at >= prompt_length_);
  log_.Truncate(to);
  prompt_length_ = std::min(prompt_length_, to);
}

void SequenceState::CountToken(uint32_t token, int32_t change, bool output) {
  const auto at = std::ranges::lower_bound(counted_->patches, token, {}, &TokenPatch::token);
  const ptrdiff_t index = at - counted_->patches.begin();
  const bool known = at != counted_->patches.end() && at->token == token;
  TokenCount count = known ? counted_->counts[index] : TokenCount{};
  count.in_history += change;
  if (output) count.in_output += change;
  const TokenPatch patch = PatchFor(*spec_, known ? *at : TokenPatch{.token = token}, count);

  Counted& counted = Own();
  if (count.in_history == 0 && !Listed(patch)) {
    counted.patches.erase(counted.patches.begin() + index);
    counted.counts.erase(counted.counts.begin() + index);
  } else if (known) {
    counted.patches[index] = patch;
    counted.counts[index] = count;
  } else {
    counted.patches.insert(counted.patches.begin() + index, patch);
    counted.counts.insert(counted.counts.begin() + index, count);
  }
}

std::unique_ptr<SequenceState> SequenceState::Fork(std::shared_ptr<const SequenceSpec> spec, uint32_t position) {
  std::unique_ptr<SequenceState> child(new SequenceState(*this));
  child->digest_ = HistoryDigest(spec->Identity());
  if (SamePatches(*spec, *spec_)) {
    shared_ = child->shared_ = true;
    child->lent_ = false;
  } else {
    absl::flat_hash_map<uint32_t, TokenCount> counts;
    for (size_t i = 0; i < counted_->counts.size(); ++i) {
      if (counted_->counts[i].in_history > 0) counts[counted_->patches[i].token] = counted_->counts[i];
    }
    child->counted_ = Count(*spec, counts);
    child->lent_ = child->shared_ = false;
  }
  child->spec_ = std::move(spec);
  child->Truncate(position);
  return child;
}

SequenceSnapshot SequenceState::Snapshot() const {
  SequenceSnapshot snapshot;
  snapshot.prompt_length = prompt_length_;
  snapshot.history_hash = history_hash();
  snapshot.kept_from = log_.kept_from();
  TokenLog start = log_;
  start.Truncate(log_.kept_from());
  snapshot.chain_before = start.chain();
  for (uint32_t at = log_.kept_from(); at < position(); ++at) snapshot.kept.push_back(log_.at(at));
  for (size_t i = 0; i < counted_->counts.size(); ++i) {
    if (counted_->counts[i].in_history == 0) continue;  // listed only
    snapshot.tokens.push_back(counted_->patches[i].token);
    snapshot.in_history.push_back(counted_->counts[i].in_history);
    snapshot.in_output.push_back(counted_->counts[i].in_output);
  }
  return snapshot;
}

std::unique_ptr<SequenceState> SequenceState::FromSnapshot(std::shared_ptr<const SequenceSpec> spec,
                                                           const SequenceSnapshot& snapshot, uint32_t kept_history) {
  const size_t distinct = snapshot.tokens.size();
  const uint64_t length = uint64_t{snapshot.kept_from} + snapshot.kept.size();
  if (snapshot.in_history.size() != distinct || snapshot.in_output.size() != distinct ||
      snapshot.kept_from % TokenLog::kChunkTokens != 0 || snapshot.prompt_length > length) {
    return nullptr;
  }
  absl::flat_hash_map<uint32_t, TokenCount> counts;
  uint64_t in_history = 0;
  uint64_t in_output = 0;
  for (size_t i = 0; i < distinct; ++i) {
    const TokenCount count{snapshot.in_history[i], snapshot.in_output[i]};
    if (count.in_history == 0 || count.in_output > count.in_history || snapshot.tokens[i] >= spec->live_vocabulary ||
        !counts.try_emplace(snapshot.tokens[i], count).second) {
      return nullptr;
    }
    in_history += count.in_history;
    in_output += count.in_output;
  }
  if (in_history != length || in_output != length - snapshot.prompt_length) return nullptr;
  // What is kept must be among what is counted, or taking it back would count below zero.
  absl::flat_hash_map<uint32_t, TokenCount> kept;
  TokenLog log;
  log.StartAt(snapshot.kept_from, snapshot.chain_before);
  for (uint32_t token : snapshot.kept) {
    TokenCount& count = kept[token];
    ++count.in_history;
    if (log.length() >= snapshot.prompt_length) ++count.in_output;
    log.Push(token);
  }
  for (const auto& [token, count] : kept) {
    const auto it = counts.find(token);
    if (it == counts.end() || it->second.in_history < count.in_history || it->second.in_output < count.in_output ||
        it->second.in_history - it->second.in_output < count.in_history - count.in_output) {
      return nullptr;
    }
  }
  log.Trim(kept_history);
  std::unique_ptr<SequenceState> state(
      new SequenceState(std::move(spec), std::move(log), snapshot.prompt_length, kept_history, counts));
  if (state->history_hash() != snapshot.history_hash) return nullptr;
  return state;
}

}  // namespace sortition::service

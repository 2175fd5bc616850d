// Ownership, recency and bounds of all sequences with state.
#include "service/sequence/sequence_table.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/check.h"

namespace sortition::service {

SequenceTable::SequenceTable(const Limits& limits, const Clock* clock, Observer* observer)
    : limits_(limits), clock_(*clock), observer_(*observer) {}

std::variant<SequenceTable::Opened, Refusal> SequenceTable::Open(const SequenceKey& key, const SequenceOwner& owner,
                                                                 std::shared_ptr<const SequenceSpec> spec,
                                                                 const SequenceHistory* history) {
  for (;;) {
    auto found = FindOrAdd(key, owner, spec, history != nullptr);
    if (auto* refusal = std::get_if<Refusal>(&found)) return std::move(*refusal);
    auto& sequence = std::get<std::shared_ptr<Sequence>>(found);
    // Building a state from a long history takes a while; the table is not held meanwhile.
    auto taken = sequence->TakeOver(owner, spec, history);
    if (sequence->retired()) continue;  // forgotten by another thread in between
    const absl::Time guarded_until = history != nullptr ? clock_.Now() + limits_.replay_guard : absl::InfinitePast();
    if (!Account(key, sequence.get(), guarded_until) && history != nullptr) {
      // It is larger than what could be forgotten for it.
      Close(key, owner);
      return NoRoom();
    }
    if (auto* refusal = std::get_if<Refusal>(&taken)) return std::move(*refusal);
    return Opened{std::move(sequence), std::get<SequencePosition>(taken)};
  }
}

std::variant<std::shared_ptr<Sequence>, Refusal> SequenceTable::FindOrAdd(
    const SequenceKey& key, const SequenceOwner& owner, const std::shared_ptr<const SequenceSpec>& spec, bool may_add) {
  absl::MutexLock lock(&mutex_);
  const auto known = entries_.find(key);
  if (known != entries_.end()) return known->second.sequence;
  if (!may_add) {
    return Refusal{Reason::kHistoryRequired, "open.history", "", "the server does not know this sequence"};
  }
  if (!MakeRoom(1)) return NoRoom();
  recency_.push_front(key);
  Entry& entry = entries_[key];
  entry.sequence = std::make_shared<Sequence>(owner, spec, limits_.kept_history);
  entry.used = clock_.Now();
  entry.recency = recency_.begin();
  return entry.sequence;
}

Refusal SequenceTable::NoRoom() const {
  return {Reason::kOverloaded, "open",
          absl::StrCat("max_sequences ", limits_.max_sequences, ", max_state_bytes ", limits_.max_state_bytes),
          "no idle sequence can be forgotten to make room", absl::Milliseconds(100)};
}

bool SequenceTable::Account(const SequenceKey& key, Sequence* sequence, absl::Time guarded_until) {
  const uint64_t bytes = sequence->bytes();
  absl::MutexLock lock(&mutex_);
  const auto it = entries_.find(key);
  if (it == entries_.end() || it->second.sequence.get() != sequence) return true;
  Entry& entry = it->second;
  bytes_ += bytes - entry.bytes;
  entry.bytes = bytes;
  entry.used = clock_.Now();
  entry.guarded_until = guarded_until;
  recency_.splice(recency_.begin(), recency_, entry.recency);
  return MakeRoom(0);
}

void SequenceTable::Close(const SequenceKey& key, const SequenceOwner& owner) {
  absl::MutexLock lock(&mutex_);
  const auto it = entries_.find(key);
  if (it == entries_.end() || !it->second.sequence->OwnedBy(owner)) return;
  it->second.sequence->Retire();
  Forget(it);
}

uint32_t SequenceTable::live_sequences() const {
  absl::MutexLock lock(&mutex_);
  return static_cast<uint32_t>(entries_.size());
}

uint64_t SequenceTable::state_bytes() const {
  absl::MutexLock lock(&mutex_);
  return bytes_;
}

void SequenceTable::Forget(Map::iterator it) {
  bytes_ -= it->second.bytes;
  recency_.erase(it->second.recency);
  entries_.erase(it);
}

bool SequenceTable::MakeRoom(uint32_t room) {
  const absl::Time now = clock_.Now();
  const absl::Time idle_since = now - limits_.sequence_ttl;
  auto candidate = recency_.end();
  while (candidate != recency_.begin()) {
    --candidate;
    const auto it = entries_.find(*candidate);
    SORTITION_CHECK(it != entries_.end());
    const char* cause = nullptr;
    if (entries_.size() + room > limits_.max_sequences) {
      cause = "count";
    } else if (bytes_ > limits_.max_state_bytes) {
      cause = "bytes";
    } else if (it->second.used < idle_since) {
      cause = "idle";
    } else {
      return true;
    }
    if (it->second.guarded_until > now || !it->second.sequence->RetireIfIdle()) continue;
    ++candidate;
    Forget(it);
    observer_.SequencesEvicted(cause, 1);
  }
  return entries_.size() + room <= limits_.max_sequences && bytes_ <= limits_.max_state_bytes;
}

}  // namespace sortition::service

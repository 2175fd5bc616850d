// Ownership, recency and bounds of all sequences with state.
#include "service/sequence/sequence_table.h"

#include <utility>

#include "absl/strings/str_cat.h"

namespace sortition::service {
namespace {

// What a sequence costs beside its own object: list and map nodes, the key, allocations' heads.
constexpr uint64_t kEntryBytes = 160;

}  // namespace

SequenceTable::SequenceTable(const Limits& limits, const Clock* clock, Observer* observer)
    : limits_(limits), clock_(*clock), observer_(*observer) {}

std::variant<SequenceTable::Opened, Refusal> SequenceTable::Open(const SequenceKey& key, const SequenceOwner& owner,
                                                                 std::shared_ptr<const SequenceSpec> spec,
                                                                 std::unique_ptr<SequenceState> replayed) {
  for (;;) {
    const bool replays = replayed != nullptr;
    auto found = FindOrAdd(key, owner, spec, replays);
    if (auto* refusal = std::get_if<Refusal>(&found)) return std::move(*refusal);
    auto& sequence = std::get<std::shared_ptr<Sequence>>(found);
    auto taken = sequence->TakeOver(owner, spec, replays ? &replayed : nullptr);
    if (sequence->retired()) continue;  // forgotten by another thread in between
    const absl::Time guarded_until = replays ? clock_.Now() + limits_.replay_guard : absl::InfinitePast();
    if (!Account(key, sequence.get(), guarded_until) && replays) {
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
  const auto known = by_key_.find(&key);
  if (known != by_key_.end()) return known->second->sequence;
  if (!may_add) {
    return Refusal{Reason::kHistoryRequired, "open.history", "", "the server does not know this sequence"};
  }
  if (!MakeRoom(1)) return NoRoom();
  entries_.push_front({key, std::make_shared<Sequence>(owner, spec, limits_.kept_history), 0, clock_.Now()});
  by_key_.emplace(&entries_.front().key, entries_.begin());
  return entries_.front().sequence;
}

Refusal SequenceTable::NoRoom() const {
  return {Reason::kOverloaded, "open",
          absl::StrCat("max_sequences ", limits_.max_sequences, ", max_state_bytes ", limits_.max_state_bytes),
          "no idle sequence can be forgotten to make room", absl::Milliseconds(100)};
}

bool SequenceTable::Account(const SequenceKey& key, Sequence* sequence, absl::Time guarded_until) {
  const uint64_t bytes = sequence->bytes() + kEntryBytes;
  absl::MutexLock lock(&mutex_);
  const auto it = by_key_.find(&key);
  if (it == by_key_.end() || it->second->sequence.get() != sequence) return true;
  Entry& entry = *it->second;
  bytes_ += bytes - entry.bytes;
  entry.bytes = bytes;
  entry.used = clock_.Now();
  entry.guarded_until = guarded_until;
  entries_.splice(entries_.begin(), entries_, it->second);
  return MakeRoom(0);
}

void SequenceTable::Close(const SequenceKey& key, const SequenceOwner& owner) {
  absl::MutexLock lock(&mutex_);
  const auto it = by_key_.find(&key);
  if (it == by_key_.end() || !it->second->sequence->OwnedBy(owner)) return;
  it->second->sequence->Retire();
  Forget(it->second);
}

uint32_t SequenceTable::live_sequences() const {
  absl::MutexLock lock(&mutex_);
  return static_cast<uint32_t>(entries_.size());
}

uint64_t SequenceTable::state_bytes() const {
  absl::MutexLock lock(&mutex_);
  return bytes_;
}

void SequenceTable::Sweep() {
  absl::MutexLock lock(&mutex_);
  MakeRoom(0);
}

void SequenceTable::Forget(Entries::iterator entry) {
  bytes_ -= entry->bytes;
  by_key_.erase(&entry->key);
  entries_.erase(entry);
}

bool SequenceTable::MakeRoom(uint32_t room) {
  const absl::Time now = clock_.Now();
  const absl::Time idle_since = now - limits_.sequence_ttl;
  auto candidate = entries_.end();
  while (candidate != entries_.begin()) {
    --candidate;
    const char* cause = nullptr;
    if (entries_.size() + room > limits_.max_sequences) {
      cause = "count";
    } else if (bytes_ > limits_.max_state_bytes) {
      cause = "bytes";
    } else if (candidate->used < idle_since) {
      cause = "idle";
    } else {
      return true;
    }
    // A sequence with a step in flight is in use, however long ago it was last touched.
    if (candidate->guarded_until > now || !candidate->sequence->RetireIfIdle()) continue;
    Forget(candidate++);
    observer_.SequencesEvicted(cause, 1);
  }
  return entries_.size() + room <= limits_.max_sequences && bytes_ <= limits_.max_state_bytes;
}

}  // namespace sortition::service

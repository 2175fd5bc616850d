// Ownership, recency and bounds of all sequences with state.
#include "service/sequence/sequence_table.h"

#include <utility>
#include <vector>

#include "service/limits.h"

namespace sortition::service {
namespace {

// Bytes of a sequence beside its own object: list and map nodes, the key, allocation headers.
constexpr uint64_t kEntryBytes = 208;

Refusal NoRoom(const Bound& limit) {
  return {Reason::kOverloaded, "open", limit.Text(), "no idle sequence can be forgotten to make room",
          absl::Milliseconds(100)};
}

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
    // Leaves the recency of another owner's sequence unchanged.
    if (auto* refusal = std::get_if<Refusal>(&taken); refusal && refusal->reason != Reason::kHistoryRequired) {
      return std::move(*refusal);
    }
    const absl::Time guarded_until = replays ? clock_.Now() + limits_.replay_guard : absl::InfinitePast();
    if (!Account(key, sequence.get(), guarded_until) && replays) {
      // The sequence is larger than all that could be forgotten for it.
      Close(key, owner.epoch);
      return NoRoom(Bounds(limits_).max_state_bytes());
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
  if (!MakeRoomOfTenant(key.tenant)) {
    return Refusal{Reason::kClientLimit, "open", Bounds(limits_).client_sequences().Text(),
                   "no idle sequence of this client can be forgotten to make room", absl::Milliseconds(100)};
  }
  if (!MakeRoom(1)) {
    return NoRoom(entries_.size() < limits_.max_sequences ? Bounds(limits_).max_state_bytes()
                                                          : Bounds(limits_).max_sequences());
  }
  return Add(key, std::make_shared<Sequence>(owner, spec, limits_.kept_history))->sequence;
}

SequenceTable::TenantAccount& SequenceTable::AccountOf(const std::string& tenant) {
  std::unique_ptr<TenantAccount>& account = accounts_[tenant];
  if (account == nullptr) account = std::make_unique<TenantAccount>();
  return *account;
}

void SequenceTable::EraseIfEmpty(const std::string& tenant) {
  const auto found = accounts_.find(tenant);
  if (found->second->entries.empty() && found->second->held == 0) accounts_.erase(found);
}

SequenceTable::Entries::iterator SequenceTable::Add(const SequenceKey& key, std::shared_ptr<Sequence> sequence) {
  TenantAccount& account = AccountOf(key.tenant);
  entries_.push_front({key, std::move(sequence), 0, clock_.Now()});
  Entry& entry = entries_.front();
  entry.account = &account;
  account.entries.push_front(&entry);
  entry.place = account.entries.begin();
  by_key_.emplace(&entry.key, entries_.begin());
  return entries_.begin();
}

bool SequenceTable::Account(const SequenceKey& key, Sequence* sequence, absl::Time guarded_until) {
  const uint64_t bytes = sequence->bytes() + kEntryBytes;
  absl::MutexLock lock(&mutex_);
  const auto it = by_key_.find(&key);
  if (it == by_key_.end() || it->second->sequence.get() != sequence) return true;
  Entry& entry = *it->second;
  bytes_ += bytes - entry.bytes;
  entry.account->bytes += bytes - entry.bytes;
  entry.bytes = bytes;
  entry.used = clock_.Now();
  entry.guarded_until = guarded_until;
  entries_.splice(entries_.begin(), entries_, it->second);
  entry.account->entries.splice(entry.account->entries.begin(), entry.account->entries, entry.place);
  return MakeRoom(0);
}

std::optional<Refusal> SequenceTable::MakeRoomAhead(const SequenceKey& key, Sequence* sequence) {
  if (Account(key, sequence, absl::InfinitePast())) return std::nullopt;
  return Refusal{Reason::kOverloaded, "", Bounds(limits_).max_state_bytes().Text(),
                 "no idle sequence can be forgotten to make room for what the row's positions see",
                 absl::Milliseconds(100)};
}

std::variant<bool, Refusal> SequenceTable::Close(const SequenceKey& key, uint64_t epoch) {
  absl::MutexLock lock(&mutex_);
  const auto it = by_key_.find(&key);
  if (it == by_key_.end()) return false;
  if (auto refusal = it->second->sequence->RetireUpTo(epoch)) return *std::move(refusal);
  Forget(it->second);
  return true;
}

std::optional<Refusal> SequenceTable::Hold(const std::string& tenant, uint64_t bytes, const char* field) {
  if (bytes == 0) return std::nullopt;
  absl::MutexLock lock(&mutex_);
  const auto found = accounts_.find(tenant);
  const uint64_t has = (found == accounts_.end() ? 0 : found->second->held) + bytes;
  if (has + held_ + bytes <= limits_.max_state_bytes) {
    Held(tenant, static_cast<int64_t>(bytes));
    if (MakeRoom(0)) return std::nullopt;
    Held(tenant, -static_cast<int64_t>(bytes));
  }
  return Refusal{Reason::kOverloaded, field, Bounds(limits_).max_state_bytes().Text(),
                 "options of open sequences and what has come of histories and states take too much of it",
                 absl::Milliseconds(100)};
}

void SequenceTable::GiveBack(const std::string& tenant, uint64_t bytes) {
  if (bytes == 0) return;
  absl::MutexLock lock(&mutex_);
  Held(tenant, -static_cast<int64_t>(bytes));
}

void SequenceTable::Held(const std::string& tenant, int64_t bytes) {
  TenantAccount& account = AccountOf(tenant);
  for (uint64_t* total : {&account.held, &account.bytes, &held_, &bytes_}) *total += static_cast<uint64_t>(bytes);
  EraseIfEmpty(tenant);
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
  entry->account->bytes -= entry->bytes;
  entry->account->entries.erase(entry->place);
  EraseIfEmpty(entry->key.tenant);
  by_key_.erase(&entry->key);
  entries_.erase(entry);
}

bool SequenceTable::ForgetIfIdle(Entries::iterator entry, absl::Time now) {
  if (entry->guarded_until > now || !entry->sequence->RetireIfIdle()) return false;
  Forget(entry);
  return true;
}

bool SequenceTable::MakeRoomOfTenant(const std::string& tenant) {
  const auto found = accounts_.find(tenant);
  if (limits_.client_sequences == 0 || found == accounts_.end()) return true;
  std::list<Entry*>& entries = found->second->entries;
  if (entries.size() < limits_.client_sequences) return true;
  const absl::Time now = clock_.Now();
  for (auto candidate = entries.rbegin(); candidate != entries.rend(); ++candidate) {
    if (!ForgetIfIdle(by_key_.at(&(*candidate)->key), now)) continue;
    observer_.Count(Counter::kEvictedByClient, 1);
    return true;
  }
  return false;
}

std::vector<std::pair<std::string, SequenceTable::TenantUse>> SequenceTable::tenant_uses() const {
  absl::MutexLock lock(&mutex_);
  std::vector<std::pair<std::string, TenantUse>> uses;
  for (const auto& [tenant, account] : accounts_) {
    uses.push_back({tenant, {static_cast<uint32_t>(account->entries.size()), account->bytes}});
  }
  return uses;
}

SequenceTable::Forgotten SequenceTable::ForgetAll(const std::string& tenant) {
  absl::MutexLock lock(&mutex_);
  Forgotten forgotten;
  const auto found = accounts_.find(tenant);
  if (found == accounts_.end()) return forgotten;
  const std::vector<Entry*> entries(found->second->entries.begin(), found->second->entries.end());
  for (const Entry* entry : entries) {
    ++(ForgetIfIdle(by_key_.at(&entry->key), absl::InfiniteFuture()) ? forgotten.forgotten : forgotten.busy);
  }
  if (forgotten.forgotten > 0) observer_.Count(Counter::kEvictedByOperator, forgotten.forgotten);
  return forgotten;
}

bool SequenceTable::MakeRoom(uint32_t room) {
  const absl::Time now = clock_.Now();
  const absl::Time idle_since = now - limits_.sequence_ttl;
  auto candidate = entries_.end();
  while (candidate != entries_.begin()) {
    --candidate;
    Counter cause = Counter::kEvictedByCount;
    if (entries_.size() + room > limits_.max_sequences) {
      cause = Counter::kEvictedByCount;
    } else if (bytes_ > limits_.max_state_bytes) {
      cause = Counter::kEvictedByBytes;
    } else if (candidate->used < idle_since) {
      cause = Counter::kEvictedIdle;
    } else {
      return true;
    }
    // A sequence with a step in flight is in use, however long ago it was touched.
    const auto entry = candidate++;
    if (ForgetIfIdle(entry, now)) {
      observer_.Count(cause, 1);
    } else {
      candidate = entry;
    }
  }
  return entries_.size() + room <= limits_.max_sequences && bytes_ <= limits_.max_state_bytes;
}

}  // namespace sortition::service

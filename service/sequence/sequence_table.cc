// Ownership, recency and bounds of all sequences with state.
#include "service/sequence/sequence_table.h"

#include <iterator>
#include <utility>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "service/limits.h"

namespace sortition::service {
namespace {

// Bytes of a sequence besides its own object: list and map nodes, the key, allocation headers.
constexpr uint64_t kEntryBytes = 208;
// A state of this size is destroyed in about a quarter of a millisecond.
constexpr uint64_t kLargeState = 1 << 20;

Refusal NoRoom(const Bound& limit) {
  return {Reason::kOverloaded, "open", limit.Text(), "no idle sequence can be forgotten to make room",
          absl::Milliseconds(100)};
}

}  // namespace

SequenceTable::SequenceTable(const Limits& limits, const Clock* clock, Observer* observer)
    : limits_(limits), clock_(*clock), observer_(*observer) {}

std::variant<SequenceTable::Opened, Refusal> SequenceTable::Open(const SequenceKey& key, const SequenceOwner& owner,
                                                                 std::shared_ptr<const SequenceSpec> spec,
                                                                 std::unique_ptr<Text> replayed) {
  const uint64_t refused_bytes = replayed == nullptr ? 0 : replayed->bytes();
  const absl::Cleanup destroy = [&] { Destroy(std::move(replayed), refused_bytes); };
  for (;;) {
    const bool replays = replayed != nullptr;
    auto found = FindOrAdd(key, owner, spec, replays);
    if (auto* refusal = std::get_if<Refusal>(&found)) return std::move(*refusal);
    auto& sequence = std::get<std::shared_ptr<Sequence>>(found);
    std::unique_ptr<Text> replaced;
    auto taken = sequence->TakeOver(owner, spec, replays ? &replayed : nullptr, &replaced);
    const uint64_t replaced_bytes = replaced == nullptr ? 0 : replaced->bytes();
    Destroy(std::move(replaced), replaced_bytes);
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
    return Opened{std::move(sequence), std::get<SequencePosition>(taken), replaced_bytes};
  }
}

std::variant<std::shared_ptr<Sequence>, Refusal> SequenceTable::FindOrAdd(
    const SequenceKey& key, const SequenceOwner& owner, const std::shared_ptr<const SequenceSpec>& spec, bool may_add) {
  const Lock lock(this);
  const auto known = by_key_.find(&key);
  if (known != by_key_.end()) return known->second->sequence;
  if (!may_add) {
    return Refusal{Reason::kHistoryRequired, "open.history", "", "the server does not know this sequence"};
  }
  if (!MakeRoomOfTenant(key.tenant)) {
    return Refusal{Reason::kClientLimit, "open", Bounds(limits_).client_sequences().Text(),
                   "no idle sequence of this client can be forgotten to make room", absl::Milliseconds(100)};
  }
  if (!MakeRoom(key.tenant, 1)) {
    return NoRoom(entries_.size() < limits_.max_sequences ? Bounds(limits_).max_state_bytes()
                                                          : Bounds(limits_).max_sequences());
  }
  return Add(key, std::make_shared<Sequence>(owner, spec, limits_.kept_history))->sequence;
}

SequenceTable::TenantAccount& SequenceTable::FindOrAddAccount(const std::string& tenant) {
  std::unique_ptr<TenantAccount>& account = accounts_[tenant];
  if (account == nullptr) {
    account = std::make_unique<TenantAccount>(TenantAccount{tenant});
    by_entries_.emplace(0, account->tenant);
    by_bytes_.emplace(0, account->tenant);
  }
  return *account;
}

void SequenceTable::AddBytes(TenantAccount* account, uint64_t bytes) {
  if (bytes == 0) return;
  by_bytes_.erase({account->bytes, account->tenant});
  account->bytes += bytes;
  bytes_ += bytes;
  by_bytes_.emplace(account->bytes, account->tenant);
}

void SequenceTable::CountEntries(TenantAccount* account, size_t before) {
  by_entries_.erase({before, account->tenant});
  by_entries_.emplace(account->entries.size(), account->tenant);
}

void SequenceTable::EraseIfEmpty(const std::string& tenant) {
  const auto found = accounts_.find(tenant);
  const TenantAccount& account = *found->second;
  if (!account.entries.empty() || account.held > 0) return;
  by_entries_.erase({0, account.tenant});
  by_bytes_.erase({account.bytes, account.tenant});
  accounts_.erase(found);
}

SequenceTable::Entries::iterator SequenceTable::Add(const SequenceKey& key, std::shared_ptr<Sequence> sequence) {
  TenantAccount& account = FindOrAddAccount(key.tenant);
  entries_.push_front({key, std::move(sequence), 0, clock_.Now()});
  Entry& entry = entries_.front();
  entry.account = &account;
  account.entries.push_front(&entry);
  entry.place = account.entries.begin();
  CountEntries(&account, account.entries.size() - 1);
  by_key_.emplace(&entry.key, entries_.begin());
  return entries_.begin();
}

bool SequenceTable::Account(const SequenceKey& key, Sequence* sequence, absl::Time guarded_until) {
  const uint64_t bytes = sequence->bytes() + kEntryBytes;
  const Lock lock(this);
  const auto it = by_key_.find(&key);
  if (it == by_key_.end() || it->second->sequence.get() != sequence) return true;
  Entry& entry = *it->second;
  AddBytes(entry.account, bytes - entry.bytes);
  entry.bytes = bytes;
  entry.used = clock_.Now();
  entry.guarded_until = guarded_until;
  entries_.splice(entries_.begin(), entries_, it->second);
  entry.account->entries.splice(entry.account->entries.begin(), entry.account->entries, entry.place);
  return MakeRoom(key.tenant, 0);
}

std::optional<Refusal> SequenceTable::MakeRoomAhead(const SequenceKey& key, Sequence* sequence) {
  if (Account(key, sequence, absl::InfinitePast())) return std::nullopt;
  return Refusal{Reason::kOverloaded, "", Bounds(limits_).max_state_bytes().Text(),
                 "no idle sequence can be forgotten to make room for what the row's positions see",
                 absl::Milliseconds(100)};
}

std::variant<uint64_t, Refusal> SequenceTable::Close(const SequenceKey& key, uint64_t epoch) {
  std::shared_ptr<Sequence> sequence;
  {
    absl::MutexLock lock(&mutex_);
    const auto it = by_key_.find(&key);
    if (it == by_key_.end()) return uint64_t{0};
    sequence = it->second->sequence;
  }
  // Not under the table's lock, since another thread may work on the sequence.
  const uint64_t bytes = sequence->bytes();
  std::unique_ptr<Text> state;
  if (auto refusal = sequence->RetireUpTo(epoch, &state)) return *std::move(refusal);
  Destroy(std::move(state), bytes);
  const Lock lock(this);
  const auto it = by_key_.find(&key);
  if (it != by_key_.end() && it->second->sequence == sequence) Forget(it->second);
  return bytes;
}

std::optional<Refusal> SequenceTable::Hold(const std::string& tenant, uint64_t bytes, const char* field) {
  if (bytes == 0) return std::nullopt;
  const Lock lock(this);
  const auto found = accounts_.find(tenant);
  const uint64_t has = (found == accounts_.end() ? 0 : found->second->held) + bytes;
  if (has + held_ + bytes <= limits_.max_state_bytes) {
    Held(tenant, static_cast<int64_t>(bytes));
    if (MakeRoom(tenant, 0)) return std::nullopt;
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
  TenantAccount& account = FindOrAddAccount(tenant);
  for (uint64_t* total : {&account.held, &held_}) *total += static_cast<uint64_t>(bytes);
  AddBytes(&account, static_cast<uint64_t>(bytes));
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

void SequenceTable::Destroy(std::shared_ptr<const void> state, uint64_t bytes) {
  if (state == nullptr || bytes < kLargeState) return;
  absl::call_once(destroys_, [this] { destroyer_ = std::make_unique<AsideThreads>(1); });
  destroyer_->Run([state = std::move(state)]() mutable { state.reset(); });
}

void SequenceTable::Sweep() {
  const Lock lock(this);
  ForgetExpired(clock_.Now());
}

void SequenceTable::Forget(Entries::iterator entry) {
  TenantAccount* const account = entry->account;
  AddBytes(account, -entry->bytes);
  account->entries.erase(entry->place);
  CountEntries(account, account->entries.size() + 1);
  EraseIfEmpty(entry->key.tenant);
  by_key_.erase(&entry->key);
  forgotten_.splice(forgotten_.end(), entries_, entry);
}

bool SequenceTable::ForgetIfIdle(Entries::iterator entry, absl::Time now) {
  if (entry->guarded_until > now || !entry->sequence->RetireIfIdle(&entry->state)) return false;
  Forget(entry);
  return true;
}

bool SequenceTable::MakeRoomOfTenant(const std::string& tenant) {
  const auto found = accounts_.find(tenant);
  if (limits_.client_sequences == 0 || found == accounts_.end()) return true;
  if (found->second->entries.size() < limits_.client_sequences) return true;
  if (!ForgetOneOf(tenant, clock_.Now())) return false;
  observer_.Count(Counter::kEvictedByClient, 1);
  return true;
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
  const Lock lock(this);
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

bool SequenceTable::ForgetOneOf(absl::string_view tenant, absl::Time now) {
  const auto found = accounts_.find(tenant);
  if (found == accounts_.end()) return false;
  const std::list<Entry*>& entries = found->second->entries;
  for (auto entry = entries.rbegin(); entry != entries.rend(); ++entry) {
    if (ForgetIfIdle(by_key_.at(&(*entry)->key), now)) return true;
  }
  return false;
}

bool SequenceTable::ForgetBeyondShare(const TenantsByUse& by_use, uint64_t bound, absl::string_view tenant,
                                      absl::Time now) {
  const uint64_t share = bound / (by_use.size() + (accounts_.contains(tenant) ? 0 : 1));
  for (auto larger = by_use.rbegin(); larger != by_use.rend() && larger->first > share; ++larger) {
    if (ForgetOneOf(larger->second, now)) return true;
  }
  return ForgetOneOf(tenant, now);
}

void SequenceTable::ForgetExpired(absl::Time now) {
  for (auto entry = entries_.end(); entry != entries_.begin();) {
    if (std::prev(entry)->used >= now - limits_.sequence_ttl) return;
    // A sequence with a step in flight is in use, however long ago it was touched.
    if (ForgetIfIdle(std::prev(entry), now)) {
      observer_.Count(Counter::kEvictedIdle, 1);
    } else {
      --entry;
    }
  }
}

bool SequenceTable::MakeRoom(const std::string& tenant, uint32_t room) {
  const absl::Time now = clock_.Now();
  ForgetExpired(now);
  while (entries_.size() + room > limits_.max_sequences) {
    if (!ForgetBeyondShare(by_entries_, limits_.max_sequences, tenant, now)) return false;
    observer_.Count(Counter::kEvictedByCount, 1);
  }
  while (bytes_ > limits_.max_state_bytes) {
    if (!ForgetBeyondShare(by_bytes_, limits_.max_state_bytes, tenant, now)) return false;
    observer_.Count(Counter::kEvictedByBytes, 1);
  }
  return true;
}

}  // namespace sortition::service

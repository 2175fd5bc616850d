// Table of all sequences that keep state: their owners, and the bounds that idle ones are forgotten for.
//
// Beyond a bound the tenant that has most of it loses its longest unused sequences, so a tenant with no more than an
// even share of the bound loses nothing to others.
#pragma once

#include <cstdint>
#include <list>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/base/call_once.h"
#include "absl/base/thread_annotations.h"
#include "absl/container/btree_set.h"
#include "absl/container/flat_hash_map.h"
#include "absl/hash/hash.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "service/aside_threads.h"
#include "service/clock.h"
#include "service/limits.h"
#include "service/observer.h"
#include "service/refusal.h"
#include "service/sequence/sequence.h"

namespace sortition::service {

struct SequenceKey {
  std::string tenant;          // from the caller's identity
  std::string worker_session;  // from the stream's hello
  std::string request_id;
  auto operator<=>(const SequenceKey&) const = default;
  template <typename H>
  friend H AbslHashValue(H h, const SequenceKey& key) {
    return H::combine(std::move(h), key.tenant, key.worker_session, key.request_id);
  }
};

// Thread-safe. Blocks for one table operation at most, and no operation waits under the table's lock for a sequence
// that another thread works on. Evicting costs O(evicted).
class SequenceTable {
 public:
  // `clock` and `observer` are not owned and outlive the table.
  SequenceTable(const Limits& limits, const Clock* clock, Observer* observer);

  struct Opened {
    std::shared_ptr<Sequence> sequence;
    SequencePosition at;
    uint64_t replaced_bytes = 0;  // of the state before, which is gone
  };

  // Makes `owner`, with its epoch, the owner of the sequence and returns it. Refuses a lower epoch, or an equal one of
  // another owner, with SUPERSEDED, and changes nothing. With `replayed`, which was built under `spec`, that becomes
  // the state. Without it, a state built under the same spec is kept; otherwise returns HISTORY_REQUIRED. OVERLOADED if
  // no room can be made.
  std::variant<Opened, Refusal> Open(const SequenceKey& key, const SequenceOwner& owner,
                                     std::shared_ptr<const SequenceSpec> spec, std::unique_ptr<Text> replayed);

  // Marks the sequence as used now and accounts for its memory. Call after every step.
  void Touch(const SequenceKey& key, Sequence* sequence) { Account(key, sequence, absl::InfinitePast()); }

  // Accounts for the look-ahead of a step that has begun, until the next Touch. OVERLOADED if no room can be made: the
  // step must be aborted then.
  std::optional<Refusal> MakeRoomAhead(const SequenceKey& key, Sequence* sequence);

  // Forgets the sequence. Returns its bytes, 0 if there is none. Refuses with SUPERSEDED, and forgets nothing, if an
  // epoch above `epoch` owns it. So a late close cannot end a later opening.
  std::variant<uint64_t, Refusal> Close(const SequenceKey& key, uint64_t epoch);

  // Destroys what was a state, or a part of one: a large one on another thread, since that takes long. Locks nothing
  // for a small one.
  void Destroy(std::shared_ptr<const void> state, uint64_t bytes);

  // Periodic work: forgets sequences that were idle for too long. The next Open does it otherwise.
  void Sweep();

  // Reserves memory of a tenant outside its sequences, for `field` of a message. It counts with the sequences' memory
  // but cannot be evicted. OVERLOADED, and nothing is reserved, if no room can be made, or if the tenant would hold
  // more than is left for reservations: so one tenant alone gets half of `max_state_bytes`, two get a third each.
  std::optional<Refusal> Hold(const std::string& tenant, uint64_t bytes, const char* field);
  void GiveBack(const std::string& tenant, uint64_t bytes);

  // Sequences and memory of each tenant, reservations included.
  struct TenantUse {
    uint32_t sequences = 0;
    uint64_t bytes = 0;
  };
  std::vector<std::pair<std::string, TenantUse>> tenant_uses() const;

  // Forgets a tenant's sequences without a step in flight. Returns their number, and the others'.
  struct Forgotten {
    uint32_t forgotten = 0;
    uint32_t busy = 0;
  };
  Forgotten ForgetAll(const std::string& tenant);

  uint32_t live_sequences() const;
  uint64_t state_bytes() const;

 private:
  struct TenantAccount;
  struct Entry {
    SequenceKey key;
    std::shared_ptr<Sequence> sequence;
    uint64_t bytes = 0;  // as last accounted
    absl::Time used;
    absl::Time guarded_until = absl::InfinitePast();  // a replayed history waits for its first step until then
    TenantAccount* account = nullptr;
    std::list<Entry*>::iterator place = {};  // among the tenant's
    std::unique_ptr<Text> state = nullptr;   // of a forgotten sequence
  };
  using Entries = std::list<Entry>;
  // A tenant's part of the table; removed with its last entry and reservation.
  struct TenantAccount {
    std::string tenant;
    std::list<Entry*> entries = {};  // most recently used first
    uint64_t bytes = 0;              // of entries and reservations
    uint64_t held = 0;
  };
  using TenantsByUse = absl::btree_set<std::pair<uint64_t, absl::string_view>>;
  // Holds the table's lock. What was forgotten meanwhile is destroyed after its release, since that takes long.
  class ABSL_SCOPED_LOCKABLE Lock {
   public:
    explicit Lock(SequenceTable* table) ABSL_EXCLUSIVE_LOCK_FUNCTION(table->mutex_) : table_(*table) {
      table_.mutex_.Lock();
    }
    ~Lock() ABSL_UNLOCK_FUNCTION() {
      Entries forgotten = std::exchange(table_.forgotten_, {});
      table_.mutex_.Unlock();
      for (Entry& entry : forgotten) table_.Destroy(std::move(entry.state), entry.bytes);
    }

   private:
    SequenceTable& table_;
  };
  // Finds entries by their own keys, so that a key is stored once.
  struct HashKey {
    size_t operator()(const SequenceKey* key) const { return absl::HashOf(*key); }
  };
  struct EqualKey {
    bool operator()(const SequenceKey* a, const SequenceKey* b) const { return *a == *b; }
  };

  std::variant<std::shared_ptr<Sequence>, Refusal> FindOrAdd(const SequenceKey& key, const SequenceOwner& owner,
                                                             const std::shared_ptr<const SequenceSpec>& spec,
                                                             bool may_add);
  // Returns false if the bounds cannot be kept.
  bool Account(const SequenceKey& key, Sequence* sequence, absl::Time guarded_until);
  TenantAccount& FindOrAddAccount(const std::string& tenant) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void AddBytes(TenantAccount* account, uint64_t bytes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void CountEntries(TenantAccount* account, size_t before) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void EraseIfEmpty(const std::string& tenant) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Held(const std::string& tenant, int64_t bytes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  Entries::iterator Add(const SequenceKey& key, std::shared_ptr<Sequence> sequence)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Forget(Entries::iterator entry) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Returns false, and forgets nothing, if it is in use at `now`.
  bool ForgetIfIdle(Entries::iterator entry, absl::Time now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Forgets the longest unused idle sequence of a tenant, which may have none. Returns false if none is idle.
  bool ForgetOneOf(absl::string_view tenant, absl::Time now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Forgets an idle sequence of the first tenant that has one: those above an even share of `bound`, by their use, and
  // then `tenant` itself. Returns false if none has.
  bool ForgetBeyondShare(const TenantsByUse& by_use, uint64_t bound, absl::string_view tenant, absl::Time now)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Forgets an idle sequence of the tenant if it may have no more. Returns false if it may not have one more.
  bool MakeRoomOfTenant(const std::string& tenant) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Forgets sequences that were idle for too long, and others for `tenant` until the bounds hold with `room` more
  // sequences. Returns false if they cannot. Keeps sequences with a step in flight, and those whose history was
  // replayed for a step that has not arrived yet: otherwise workers that replay would evict each other's histories, and
  // none would reach its step.
  bool MakeRoom(const std::string& tenant, uint32_t room) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void ForgetExpired(absl::Time now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const Limits limits_;
  const Clock& clock_;
  Observer& observer_;
  mutable absl::Mutex mutex_;
  Entries entries_ ABSL_GUARDED_BY(mutex_);    // most recently used first
  Entries forgotten_ ABSL_GUARDED_BY(mutex_);  // since the lock was taken
  absl::flat_hash_map<const SequenceKey*, Entries::iterator, HashKey, EqualKey> by_key_ ABSL_GUARDED_BY(mutex_);
  absl::flat_hash_map<std::string, std::unique_ptr<TenantAccount>> accounts_ ABSL_GUARDED_BY(mutex_);  // by tenant
  TenantsByUse by_entries_ ABSL_GUARDED_BY(mutex_);  // accounts_, by the number of their entries
  TenantsByUse by_bytes_ ABSL_GUARDED_BY(mutex_);    // accounts_, by their bytes
  uint64_t bytes_ ABSL_GUARDED_BY(mutex_) = 0;       // of all tenants
  uint64_t held_ ABSL_GUARDED_BY(mutex_) = 0;        // reservations, part of bytes_
  absl::once_flag destroys_;
  std::unique_ptr<AsideThreads> destroyer_;  // one thread, once a large state was destroyed
};

}  // namespace sortition::service

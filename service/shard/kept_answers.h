// Keeps the last answer of each sequence whose rows come in shards, for ranks that lost theirs with their stream.
//
// An answer is forgotten when the next one is put, when all ranks have closed the sequence, and when it was unused for
// `sequence_ttl`. A tenant with more than kMostKeptOfTenant loses its own longest unused answers. Above
// `max_shard_answer_bytes` the tenant with most bytes does. So others cannot push out a tenant below an even share.
#pragma once

#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/btree_set.h"
#include "absl/container/flat_hash_map.h"
#include "absl/container/node_hash_map.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "service/limits.h"
#include "service/sequence/sequence_table.h"
#include "service/wire/step_answers.h"
#include "sortition/v1/sampling.pb.h"

namespace sortition::service {

// Returns a hash of the step's fields, except its id, that the ranks of all shards send alike.
uint64_t HashAsk(const v1::StepRow& row);

// The most bytes that are kept for one tenant.
inline constexpr uint64_t kMostKeptOfTenant = uint64_t{64} << 20;

// An answer that exists. It is held once, however many shards and repetitions it goes to.
struct HeldAnswer {
  explicit HeldAnswer(RowAnswer row);

  RowAnswer answer;
  uint64_t bytes;  // of memory
};
using SharedAnswer = std::shared_ptr<const HeldAnswer>;

struct KeptAnswer {
  // `rank_count` 0 = unknown.
  KeptAnswer(const v1::StepRow& asked, SharedAnswer result, uint32_t rank_count);

  // Returns true if the rank of shard `index` requests this answer. `asked_hash`: HashAsk of its row.
  bool IsOf(uint64_t asked_step, uint64_t asked_hash, uint32_t index) const;

  uint64_t step_id;
  uint64_t ask;  // HashAsk
  SharedAnswer answer;
  uint32_t ranks;
  std::vector<uint32_t> closed;  // indexes of the ranks that need it no more
};

// Not thread-safe. A found answer is valid until the next change.
class KeptAnswers {
 public:
  explicit KeptAnswers(const Limits& limits);

  // Replaces the sequence's former answer. Forgets others to make room, or this one.
  void Put(const SequenceKey& key, KeptAnswer answer, absl::Time now);
  // Returns null if there is none.
  const KeptAnswer* Find(const SequenceKey& key) const;
  // Returns the answer of this step for the rank of shard `index`, and marks it as used; null if there is none.
  // `ask`: HashAsk of its row.
  SharedAnswer Find(const SequenceKey& key, uint64_t step_id, uint64_t ask, uint32_t index, absl::Time now);
  // Takes note that the rank of shard `index` has closed the sequence. Returns false if no answer is kept.
  bool Close(const SequenceKey& key, uint32_t index);
  // Forgets answers whose time has passed.
  void Expire(absl::Time now);
  // Forgets all answers of a tenant.
  void Forget(const std::string& tenant);

  size_t size() const { return entries_.size(); }
  uint64_t bytes() const { return bytes_; }

 private:
  struct Entry {
    KeptAnswer answer;
    uint64_t bytes;
    absl::Time used;
    std::list<SequenceKey>::iterator place;  // in its tenant's
  };
  struct Tenant {
    std::list<SequenceKey> by_use;  // longest unused first; not empty
    uint64_t bytes = 0;
  };
  using Tenants = absl::node_hash_map<std::string, Tenant>;  // by tenant

  using Entries = absl::flat_hash_map<SequenceKey, Entry>;

  void SetBytes(Tenants::pointer owner, uint64_t bytes);
  void Drop(Entries::iterator entry);

  const uint64_t max_bytes_;
  const absl::Duration ttl_;
  Entries entries_;
  Tenants tenants_;
  absl::btree_set<std::pair<uint64_t, absl::string_view>> by_bytes_;  // of tenants_
  uint64_t bytes_ = 0;
};

}  // namespace sortition::service

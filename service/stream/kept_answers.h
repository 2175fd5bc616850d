// Answers of rows in slices, kept for ranks that lost theirs with their stream: the last one of each sequence.
//
// One goes when the next is put, when all ranks have closed the sequence, or when it was not looked at for
// `sequence_ttl`. Beyond `max_shard_answer_bytes` the client that has most bytes loses those longest unused: who has no
// more than an even share of the bound loses nothing to others.
#pragma once

#include <cstddef>
#include <cstdint>
#include <list>
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
#include "sortition/v1/sampling.pb.h"

namespace sortition::service {

struct KeptAnswer {
  // `parts` are one RowResult in its parts. `rank_count` 0 = unknown.
  KeptAnswer(const v1::StepRow& asked, std::vector<v1::RowResult> parts, uint32_t rank_count);

  // Whether it is what the rank of slice `index` asks for.
  bool IsOf(const v1::StepRow& asked, uint32_t index) const;

  uint64_t step_id;
  uint64_t ask;  // a hash of what all ranks say alike of the step
  std::vector<v1::RowResult> results;
  uint32_t ranks;
  std::vector<uint32_t> closed;  // indexes of the ranks that need it no more
};

// Not thread-safe. What is found lives until the next change.
class KeptAnswers {
 public:
  explicit KeptAnswers(const Limits& limits);

  // In place of the sequence's former one. Others go where it needs room, or itself.
  void Put(const SequenceKey& key, KeptAnswer answer, absl::Time now);
  // Null if there is none.
  const KeptAnswer* Find(const SequenceKey& key) const;
  // The answer of this step, for the rank of slice `index`; it has been used.
  const KeptAnswer* Find(const SequenceKey& key, const v1::StepRow& asked, uint32_t index, absl::Time now);
  // The rank of slice `index` is done with the sequence.
  void Close(const SequenceKey& key, uint32_t index);
  // Forgets what was not used for long.
  void Expire(absl::Time now);
  // Forgets all of a client.
  void Forget(const std::string& tenant);

  size_t size() const { return entries_.size(); }
  uint64_t bytes() const { return bytes_; }

 private:
  struct Entry {
    KeptAnswer answer;
    uint64_t bytes;
    absl::Time used;
    std::list<SequenceKey>::iterator place;  // in its client's
  };
  struct Client {
    std::list<SequenceKey> by_use;  // longest unused first; not empty
    uint64_t bytes = 0;
  };
  using Clients = absl::node_hash_map<std::string, Client>;  // by tenant

  using Entries = absl::flat_hash_map<SequenceKey, Entry>;

  void SetBytes(Clients::pointer client, uint64_t bytes);
  void Drop(Entries::iterator entry);

  const uint64_t max_bytes_;
  const absl::Duration ttl_;
  Entries entries_;
  Clients clients_;
  absl::btree_set<std::pair<uint64_t, absl::string_view>> by_bytes_;  // of clients_, with their tenants
  uint64_t bytes_ = 0;
};

}  // namespace sortition::service

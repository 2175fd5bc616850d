// Rows that come in shards of the vocabulary, each over another stream, wait here until all shards are there.
//
// The shards of a row have the same worker (tenant and worker session), request id and step id. They may come in any
// order and in any messages, so each rank groups and repeats its messages as it needs to. The stream of shard 0 has
// opened the sequence, and its message has the row's parameters and masks. Every shard is answered.
//
// A rank that has its answer does not send the shard again. So the last answer of each sequence is kept
// (kept_answers.h) for ranks that lost theirs with their stream and send their shard again.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "service/clock.h"
#include "service/limits.h"
#include "service/sequence/sequence_table.h"
#include "service/shard/kept_answers.h"
#include "service/shard/row_shard.h"
#include "sortition/v1/sampling.pb.h"

namespace sortition::service {

// Thread-safe. The windows of the streams bound the number of shards. Refusals are sent within the calls, under no
// lock. Answers that exist are returned, for the caller to send in pieces: they may be long. Under the
// lock a shard is compared with one shard of each set of fields, and its range of tokens with that of every shard of
// its row: 4 ms of processor time for a message of 1,024 rows in 256 shards, 16 ms for one of 4,096.
class ShardTable {
 public:
  // `clock` is not owned and outlives the table.
  ShardTable(const Limits& limits, const Clock* clock);

  struct Worker {
    std::string tenant;
    std::string session;
  };
  // All shards of one row, by their first token. They cover the vocabulary, and one of them is shard 0.
  using WholeRow = std::vector<RowShard>;

  struct Added {
    std::vector<WholeRow> complete;
    std::vector<OwedAnswer> kept;  // the answers of rows that do not wait
  };
  // Takes the shards of a message's `rows`; they wait until `deadline` at most. Refuses a shard that does not fit those
  // that came before it; that changes nothing.
  Added Add(const Worker& worker, const std::shared_ptr<ShardMessage>& message, std::span<const uint32_t> rows,
            absl::Time deadline);

  enum class Source {
    kComputed,  // now, from all shards
    kBrought,   // by a rank that has it from another server; ignored if the answer of a later step is kept
  };
  // Keeps the answer of a step. Returns it for the shards of that step that waited. `ranks` is the number of ranks; 0
  // if it is unknown.
  std::vector<OwedAnswer> Keep(const Worker& worker, const v1::StepRow& asked, SharedAnswer answer, uint32_t ranks,
                               Source source);
  // Returns the kept answer of this step for the rank of shard `index`; null if there is none.
  SharedAnswer Find(const Worker& worker, const v1::StepRow& asked, uint32_t index);
  // Takes note that the rank of shard `index` has closed the sequence. Returns false if no answer of it is kept.
  bool Close(const Worker& worker, const std::string& request_id, uint32_t index);
  // Forgets the kept answers of a tenant.
  void Forget(const std::string& tenant);

  // Refuses shards whose deadline has passed with DEADLINE_PASSED, which names the first missing shards. A call ends
  // with the row in which it has refused kMostExpired shards; the next one continues. Forgets kept answers whose time
  // has passed.
  void Expire();

  using Wanted = absl::FunctionRef<bool(const RowShard&)>;
  // Refuses the shards of these sequences that wait and are wanted. If shard 0 is, all other shards of its row are
  // refused, too: the row is shard 0's.
  void Cancel(const Worker& worker, std::span<const std::string> request_ids, Wanted is_wanted,
              const Refusal& refusal) {
    Remove(worker, request_ids, is_wanted, Extent::kRows, &refusal);
  }
  // Removes shards likewise, while the other shards of their rows keep waiting. If `refusal` is null, they are not
  // answered, since their stream has ended.
  void Withdraw(const Worker& worker, std::span<const std::string> request_ids, Wanted is_wanted,
                const Refusal* refusal) {
    Remove(worker, request_ids, is_wanted, Extent::kShards, refusal);
  }

  static constexpr size_t kMostExpired = 512;

  size_t waiting() const;  // rows
  size_t kept() const;     // answers
  uint64_t kept_bytes() const;

 private:
  using RowKey = std::pair<SequenceKey, uint64_t>;  // with the step id: a sequence has several if some rank is behind
  using Deadlines = std::multimap<absl::Time, const RowKey*>;
  struct Assembly {
    Deadlines::iterator deadline;
    std::vector<RowShard> shards;  // by first token; not empty
  };
  // Ordered by content, so that the order of answers is deterministic.
  using Waiting = std::map<RowKey, Assembly>;
  enum class Extent { kShards, kRows };

  // Adds one shard to those of its row; true if it completes them.
  static bool AddShard(std::vector<RowShard>* others, const RowShard& shard,
                       std::vector<std::pair<RowShard, Refusal>>* refused);
  // Returns the next row.
  Waiting::iterator Erase(Waiting::iterator row) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Takes the shards of a sequence that wait and are wanted; with all shards of their row if shard 0 is one of them and
  // `extent` says so.
  std::vector<RowShard> TakeWaiting(const SequenceKey& key, Wanted is_wanted, Extent extent)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Remove(const Worker& worker, std::span<const std::string> request_ids, Wanted is_wanted, Extent extent,
              const Refusal* refusal);

  const Limits limits_;
  const Clock& clock_;
  mutable absl::Mutex mutex_;
  Waiting waiting_ ABSL_GUARDED_BY(mutex_);
  Deadlines deadlines_ ABSL_GUARDED_BY(mutex_);  // of waiting_
  KeptAnswers kept_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace sortition::service

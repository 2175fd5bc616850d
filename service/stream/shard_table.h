// Rows that come in slices of the vocabulary, each over a stream of its own, until all slices are there.
//
// Slices of a row are those of one worker (tenant and worker session) with the same request id and step id; in which
// messages they travel does not matter, so that each rank cuts and repeats its messages as it has to. They come in any
// order. The row is the one that slice 0 brings: its stream has opened the sequence, and its masks and limits hold.
// Every slice is answered.
//
// A rank that has its answer goes on, and never sends the slice again. So the last answer of each sequence is kept
// (kept_answers.h): for ranks that lost it with their stream, and bring their slice again.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
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
#include "service/stream/kept_answers.h"
#include "service/stream/slice_message.h"
#include "sortition/v1/sampling.pb.h"

namespace sortition::service {

// Thread-safe. As many slices as their streams' windows allow. Answers are sent within the calls, under no lock.
class ShardTable {
 public:
  // `clock` is not owned and outlives the table.
  ShardTable(const Limits& limits, const Clock* clock);

  struct Worker {
    std::string tenant;
    std::string session;
  };
  // All slices of one row, by their first token; they cover the vocabulary and one of them is slice 0.
  using WholeRow = std::vector<RowSlice>;

  // Takes the slices of a message's `rows`, which wait until `deadline` at most, and returns the rows that they
  // complete. Rows that have their answer already get it; a slice that does not fit those that came before it is
  // refused and changes nothing.
  std::vector<WholeRow> Add(const Worker& worker, const std::shared_ptr<SliceMessage>& message,
                            std::span<const uint32_t> rows, absl::Time deadline);

  // The answer of a step: `results` are one RowResult in its parts. Whoever waits with a slice of it gets it.
  enum class Source {
    kComputed,  // now, from all slices
    kBrought,   // by a rank that had it of another server; nothing if a later one is there
  };
  // `ranks`: how many there are; 0 = unknown.
  void Keep(const Worker& worker, const v1::StepRow& asked, std::vector<v1::RowResult> results, uint32_t ranks,
            Source source);
  // The kept answer of this step, for the rank of slice `index`; empty if there is none.
  std::vector<v1::RowResult> Find(const Worker& worker, const v1::StepRow& asked, uint32_t index);
  // The rank of slice `index` is done with the sequence.
  void Close(const Worker& worker, const std::string& request_id, uint32_t index);
  // Forgets the kept answers of a client.
  void Forget(const std::string& tenant);

  // Refuses, with DEADLINE_PASSED naming the slices that are missing, what has waited until its deadline, and forgets
  // answers whose time has passed.
  void Expire();

  // Takes the slices of a stream back; whoever waits for them waits on. Their rows get the refusal; null: the stream
  // has ended.
  void Withdraw(const SliceOwner* owner, const Refusal* refusal);

  size_t waiting() const;  // rows
  size_t kept() const;     // answers

 private:
  struct Assembly {
    absl::Time deadline;
    std::vector<RowSlice> slices;  // by first token; not empty
  };
  using Assemblies = std::map<uint64_t, Assembly>;  // by step id; more than one while some rank is behind

  // Adds one slice; true if it completes its row.
  static bool AddSlice(Assembly* assembly, const RowSlice& slice, std::vector<std::pair<RowSlice, Refusal>>* refused);
  // Takes the slices for which `is_wanted` holds out of what waits: of one sequence, or of all.
  using Wanted = absl::FunctionRef<bool(const RowSlice&)>;
  std::vector<RowSlice> TakeWaiting(const SequenceKey& key, Wanted is_wanted) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  std::vector<RowSlice> TakeWaiting(Wanted is_wanted) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const Clock& clock_;
  mutable absl::Mutex mutex_;
  // In an order that follows from what is in it alone, as that of the answers does.
  std::map<SequenceKey, Assemblies> waiting_ ABSL_GUARDED_BY(mutex_);
  KeptAnswers kept_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace sortition::service

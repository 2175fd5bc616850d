// Makes whole rows of vocabulary shards before a step exists: a stream's shards go to the table of all streams' shards,
// and completed rows become steps.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/string_view.h"
#include "service/client_accounts.h"
#include "service/engine.h"
#include "service/refusal.h"
#include "service/sequence/granted_row.h"
#include "service/shard/shard_table.h"
#include "service/stream/step_message.h"
#include "service/stream/stream_context.h"
#include "service/text/cost.h"

namespace sortition::service {

// A row that shard 0 brings, by its index in the message: granted, or answered already, or neither if it needs no other
// shard.
struct FirstShardRow {
  std::unique_ptr<SequenceRow> run;
  StepAnswers held;  // the answer that all shards get once they have come
};

// The shards of one stream. AddFirst, AddOther, pieces and the end are for the session's thread; the rest is
// thread-safe.
class ShardAssembler {
 public:
  // `engine` and `account` are not owned and outlive the assembler.
  ShardAssembler(Engine* engine, std::shared_ptr<StreamContext> stream, ClientAccount* account)
      : engine_(*engine), stream_(std::move(stream)), account_(*account) {}
  // Other streams' shards wait for the answers of whole rows.
  ~ShardAssembler() {
    while (has_pieces()) TakePiece();
  }

  // Answers a row of shard 0 that its sequence repeats, before AddFirst. Without epochs, where answers are not kept,
  // adds it to `held` instead, which is given to AddFirst.
  void AnswerRepeated(const std::shared_ptr<StepMessage>& message, StepAnswers repeated, StepAnswers* held);
  // Adds a message of shard 0, whose rows that can run hold their sequences: `runs` by the row's index, null for
  // others. `now` are the answers of other rows. Sends at once the refusals after which the stream's own worker opens
  // the sequence and sends its shard again. Holds all others until all shards have come, then sends them to all.
  void AddFirst(const std::shared_ptr<StepMessage>& message, std::vector<std::unique_ptr<SequenceRow>> runs,
                StepAnswers now);
  // Adds a message of another shard.
  void AddOther(const std::shared_ptr<StepMessage>& message);

  // Adds an answer that a rank has from another server: keeps it, and answers the shards that wait for it.
  void AddBrought(const v1::StepRow& asked, RowAnswer answer);

  // True after these while answers that exist have not been sent, or rows that have become whole have not started. The
  // caller then calls only TakePiece, after the stream's pause, until it is false.
  bool has_pieces() const { return !owed_.empty() || !whole_.empty(); }
  void TakePiece();

  // Returns the answer that is kept for a row of shard 0; null if there is none.
  SharedAnswer FindKept(const StepMessage& message, uint32_t row) const;

  // The worker has cancelled a message, of any shard: refuses its rows that wait with STEP_CANCELLED. With shard 0 the
  // other shards of these rows are refused, too; another shard is taken back alone.
  void Cancel(const StepMessage& message);

  // The server shuts down: refuses the shards that wait, and those that still come, with DRAINING.
  void ShutDown();
  // The stream has ended.
  void Close() { Withdraw(nullptr); }

 private:
  void Add(const std::shared_ptr<ShardMessage>& message, const std::vector<uint32_t>& rows, const StepMessage& step);
  // Takes back the shards that wait, and answers them with the refusal if there is one.
  void Withdraw(const Refusal* refusal);

  Engine& engine_;
  const std::shared_ptr<StreamContext> stream_;
  ClientAccount& account_;
  std::deque<OwedAnswer> owed_;
  std::deque<ShardTable::WholeRow> whole_;  // have not started
  Bill bill_;                               // of the message that the pieces are for
  std::atomic<bool> shutting_down_ = false;
};

// Returns the sequences that several rows of the step name.
absl::flat_hash_set<absl::string_view> FindNamedTwice(const v1::Step& step);
// Returns the refusal of one of their rows.
Refusal DuplicateRow(uint32_t index);

}  // namespace sortition::service

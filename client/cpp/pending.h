// Requests that callers wait for: a step's batch with the state of each row, and an open.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/time/time.h"
#include "client/cpp/compact_rows.h"
#include "client/cpp/sequence_record.h"
#include "sortition/batch.h"

namespace sortition::client {

// A row goes from waiting to sent to done, and back from sent to waiting each time it has to be sent again. A row
// begins as stating if its compact form is still being made at submission; until then `compact` belongs to the thread
// that makes it.
struct PendingRow {
  enum class State { kStating, kWaiting, kSent, kDone };

  std::shared_ptr<SequenceRecord> record;
  Row row;
  std::vector<std::vector<uint32_t>> bans;  // that `row` refers to, if rewinds have left some
  std::shared_ptr<std::byte[]> copy;        // logits that were read from a device; `row` then refers to them
  // One for each position: the row travels like this in a message. Empty: it travels whole.
  std::vector<CompactPosition> compact;
  uint32_t compact_refusals = 0;
  uint64_t step_id = 0;  // stays the same when the row is sent again
  State state = State::kWaiting;
  absl::Time not_before = absl::InfinitePast();
  uint32_t attempts = 0;  // refusals that asked to retry later
  uint32_t replays = 0;   // replays of its history on stream `replays_on`, since the last refusal to retry later
  uint64_t replays_on = 0;
  v1::RowResult partial;            // the parts of a result that have arrived
  std::optional<RowError> missing;  // the last refusal of a row in shards: names the shards that had not arrived
};

// Guarded by the lock of StreamState's owner, except EndUse and Finish.
struct PendingBatch {
  using Done = absl::AnyInvocable<void(std::vector<RowResult>)>;

  v1::DType dtype = v1::DTYPE_F32;
  uint32_t vocabulary_size = 0;  // of a whole row
  size_t row_bytes = 0;          // this process's part of a row
  bool is_shard = false;
  uint32_t first_token = 0;  // of a shard
  v1::DType draft_dtype = v1::DTYPE_F32;
  std::optional<ReadyWord> ready;
  std::vector<PendingRow> rows;
  std::vector<RowResult> results;  // done rows'; StreamState::Submit makes room for all
  uint32_t unfinished = 0;         // rows that are not done
  absl::Time asked;
  absl::Time deadline;
  int32_t priority = 0;
  std::string traceparent;
  Done done;

  // Counts uses of the caller's memory: one for the rows together until all are done, and one for each message that a
  // transport still holds.
  std::atomic<uint32_t> uses{1};

  // True if the logits are written.
  bool IsReady() const { return !ready || ready->IsSet(); }

  // Ends one use. True if it was the last one: the caller must then have Finish called.
  bool EndUse() { return uses.fetch_sub(1, std::memory_order_acq_rel) == 1; }

  // Delivers the results. To be called once, after the last use.
  void Finish() { std::move(done)(std::move(results)); }

  // Returns the place of a row's result.
  RowResult& ResultOf(const PendingRow& row) { return results[static_cast<size_t>(&row - rows.data())]; }
};

// Returns the logits of a row's position.
WholeLogits LogitsAt(const PendingBatch& batch, const PendingRow& row, size_t position);

struct PendingOpen {
  std::shared_ptr<SequenceRecord> record;
  absl::Time asked;
  absl::Time deadline;
  absl::AnyInvocable<void(absl::Status)> done;
  absl::Status status;
};

}  // namespace sortition::client

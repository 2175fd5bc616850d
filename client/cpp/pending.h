// What callers wait for: a step's batch with the state of each row, and an open.
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
#include "client/cpp/batch.h"
#include "client/cpp/sequence_record.h"

namespace sortition::client {

// Waiting -> sent -> done, and back from sent to waiting as often as the row has to be sent again.
struct PendingRow {
  enum class State { kWaiting, kSent, kDone };

  std::shared_ptr<SequenceRecord> record;
  Row row;
  std::shared_ptr<std::byte[]> copy;  // of logits that had to be read from a device; `row` refers to it then
  uint64_t step_id = 0;               // the same however often the row is sent
  State state = State::kWaiting;
  absl::Time not_before = absl::InfinitePast();
  uint32_t attempts = 0;  // refusals that asked for patience
  uint32_t replays = 0;   // of its history, since it last had to be patient, on this stream:
  uint64_t replays_on = 0;
  v1::RowResult partial;            // of an answer that comes in parts
  std::optional<RowError> missing;  // why a row in slices was refused the last time: which of them had not come
  RowResult result;
};

// Used under the lock of StreamState's owner, but for EndUse and Finish.
struct PendingBatch {
  using Done = absl::AnyInvocable<void(std::vector<RowResult>)>;

  v1::DType dtype = v1::DTYPE_F32;
  uint32_t vocabulary_size = 0;  // of a whole row
  size_t row_bytes = 0;          // of what there is of it here
  v1::DType draft_dtype = v1::DTYPE_F32;
  std::optional<ReadyWord> ready;
  std::vector<PendingRow> rows;
  uint32_t unfinished = 0;  // rows that are not done
  absl::Time asked;
  absl::Time deadline;
  int32_t priority = 0;
  std::string traceparent;
  Done done;

  // One for the rows together until all are done, and one for each message that some transport still holds: the
  // caller's memory is in use until there is none.
  std::atomic<uint32_t> uses{1};

  // Whether the logits are there.
  bool IsReady() const { return !ready || ready->IsSet(); }

  // True for whoever ends the last use, and so has to see to it that Finish is called.
  bool EndUse() { return uses.fetch_sub(1, std::memory_order_acq_rel) == 1; }

  // Hands the results over. Once, after the last use.
  void Finish() {
    std::vector<RowResult> results;
    results.reserve(rows.size());
    for (PendingRow& row : rows) results.push_back(std::move(row.result));
    std::move(done)(std::move(results));
  }
};

struct PendingOpen {
  std::shared_ptr<SequenceRecord> record;
  absl::Time asked;
  absl::Time deadline;
  absl::AnyInvocable<void(absl::Status)> done;
  absl::Status status;
};

}  // namespace sortition::client

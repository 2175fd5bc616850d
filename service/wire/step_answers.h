// Answers of rows of one step: encodes them, counts their contents, and splits them into messages of a size that every
// client accepts (gRPC clients take 4 MiB by default).
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "google/protobuf/arena.h"
#include "kernels/compact_row.h"
#include "service/limits.h"
#include "service/receipt/receipt_book.h"
#include "service/refusal.h"
#include "service/text/checkpoint.h"
#include "service/text/row_plan.h"
#include "service/text/row_result.h"
#include "service/text/sequence_spec.h"
#include "service/wire/encode_result.h"
#include "sortition/v1/sampling.pb.h"

namespace sortition::service {

// Has the contents of an encoded answer that are counted.
struct AnswerNote {
  uint32_t row = 0;     // index into Step.rows
  uint32_t parts = 1;   // messages
  uint32_t tokens = 0;  // drawn or accepted
  uint32_t phase = 0;   // the last one's; 0 outside of phases
  std::optional<Reason> refused = std::nullopt;
  std::string field = {};                                             // the refusal's
  std::optional<kernels::RowRequiredReason> required = std::nullopt;  // set if a compact row is not decided
};

// An answer that may go to several shards and repetitions.
struct RowAnswer {
  std::vector<v1::RowResult> parts;  // of Encoded
  AnswerNote note = {};              // `row` and `parts` hold in a StepAnswers alone
};

// Returns the result without its row's number, and with all other fields in their encoding, which protobuf keeps as
// unknown fields. It is copied, measured and written as bytes: a list of numbers takes an eighth of the time, and has a
// quarter of the memory. Thread-safe.
v1::RowResult Encoded(const v1::RowResult& result);

// All that the answer of a row is made of. Refers to the caller's objects.
struct AnswerParts {
  const RowResult& result;
  const RowPlan& plan;
  const SequenceSpec& spec;
  ReceiptChain* receipts;    // gets a receipt of each drawn token; null if the sequence has none
  const CheckpointKey& key;  // seals the state of the sequence's samplers, if they keep one
  CheckpointOwner owner;     // without its identity, which is the spec's
};

// Not thread-safe. May be moved.
class StepAnswers {
 public:
  StepAnswers() = default;
  // Takes memory for the answers of `rows` plain draws, which is freed together.
  explicit StepAnswers(size_t rows);

  bool empty() const { return notes_.empty(); }
  // Returns a note for each answered row, in the order of the answers.
  const std::vector<AnswerNote>& notes() const { return notes_; }
  v1::StepResults& results() { return arena_ != nullptr ? *in_arena_ : own_; }

  void Add(const AnswerParts& parts);
  void Refuse(RowPlace place, const Refusal& refusal);
  // Adds the answer for row `row`.
  void Add(RowAnswer answer, uint32_t row);
  void Add(StepAnswers other);

  // Returns the answers row by row, encoded.
  std::vector<RowAnswer> Rows();

  // Calls `send` with each message, of one row or of at most kMaxAnswerBytes, and the number of rows whose answers end
  // in it. The message may be moved from. The last call to this object.
  template <typename Send>
  void SendTo(uint64_t batch_id, Send send) {
    results().set_batch_id(batch_id);
    if (IsOneMessage()) return send(&results(), static_cast<uint32_t>(notes_.size()));
    for (auto& [message, rows] : Split()) send(&message, rows);
  }

 private:
  bool IsOneMessage() { return results().rows_size() <= 1 || results().ByteSizeLong() <= kMaxAnswerBytes; }
  std::vector<std::pair<v1::StepResults, uint32_t>> Split();

  std::unique_ptr<google::protobuf::Arena> arena_;
  v1::StepResults* in_arena_ = nullptr;
  v1::StepResults own_;  // in place of it
  std::vector<AnswerNote> notes_;
};

}  // namespace sortition::service

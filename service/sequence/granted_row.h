// Rows of sequences with owners: a row is granted by its sequence, and advances it exactly once.
//
// A granted row holds its sequence until Commit or Abort; meanwhile other steps of the sequence are refused with
// STEP_IN_FLIGHT. Nothing blocks for longer than a table operation.
#pragma once

#include <cstdint>
#include <memory>
#include <variant>
#include <vector>

#include "service/memory/mask_memory.h"
#include "service/refusal.h"
#include "service/sequence/sequence.h"
#include "service/sequence/sequence_table.h"
#include "service/text/row.h"
#include "service/text/row_plan.h"
#include "service/text/row_result.h"
#include "service/text/sequence_spec.h"

namespace sortition::service {

class ReceiptChain;

// The sequence of a row, as the stream that has opened it knows it.
struct RowSequence {
  std::shared_ptr<const SequenceSpec> spec = nullptr;
  SequenceOwner owner = {};
  // Set if the service keeps state for the sequence.
  std::shared_ptr<const SequenceKey> key = nullptr;
  std::shared_ptr<Sequence> state = nullptr;
  SequenceTable* table = nullptr;                    // accounts for the state's memory; not owned, outlives every row
  std::shared_ptr<ReceiptChain> receipts = nullptr;  // set if the sequence has receipts
};

// Asks the sequence to run the row. Returns an empty grant if it keeps no state. `bill` is charged as
// Sequence::Begin says. A refusal names the field of the step's row, and the sequence is as it was.
// Thread-safe.
std::variant<StepGrant, RepeatedResult, Refusal> GrantRow(const RowSequence& sequence, const RowPlan& plan, Bill* bill);

// A row with the data that it runs with.
struct GrantedRow {
  RowSequence sequence;  // without `state` if the caller keeps the history itself, and its views are in the grant
  RowPlan plan;
  std::vector<RowMaskBits> masks;  // one for each of plan.masks, empty unless that mask is packed
  StepGrant grant;                 // GrantRow's
};

// A row that has been granted. Its owner calls Commit or Abort once, which also releases masks and views. As
// thread-safe as RowRun, also among rows of one sequence table.
class SequenceRow final : public RowRun {
 public:
  explicit SequenceRow(GrantedRow&& row);

  const std::shared_ptr<ReceiptChain>& receipts() const { return sequence_.receipts; }

  // Ends a row that is complete. Returns its result, or a refusal that leaves the sequence as before the row.
  std::variant<RowResult, Refusal> Commit();
  // Ends the row without a result, complete or not: the sequence is as it was before the row.
  void Abort();

 private:
  RowSequence sequence_;
  uint64_t ticket_;
};

}  // namespace sortition::service

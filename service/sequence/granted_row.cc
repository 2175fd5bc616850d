// Grants rows, and ends them.
#include "service/sequence/granted_row.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "service/checks.h"

namespace sortition::service {
namespace {

// Ends the grant without a result, and accounts for the memory that it gives back.
void EndGrant(const RowSequence& sequence, uint64_t ticket) {
  if (sequence.state == nullptr) return;
  sequence.state->Abort(ticket);
  sequence.table->Touch(*sequence.key, sequence.state.get());
}

}  // namespace

std::variant<StepGrant, RepeatedResult, Refusal> GrantRow(const RowSequence& sequence, const RowPlan& plan,
                                                          Bill* bill) {
  if (sequence.state == nullptr) return StepGrant();
  auto begun = sequence.state->Begin(sequence.owner, plan.intent, plan.ahead, bill);
  if (auto* refusal = std::get_if<Refusal>(&begun)) {
    if (!refusal->field.empty()) refusal->field = absl::StrCat(StepRowField(plan.row), ".", refusal->field);
    return begun;
  }
  const StepGrant* const grant = std::get_if<StepGrant>(&begun);
  if (grant == nullptr || (grant->views.size() == 1 && plan.intent.edits_use != EditsUse::kChanged)) return begun;
  // Views of further positions, and lists that bans change, take memory that the table has not accounted for.
  auto refusal = sequence.table->MakeRoomAhead(*sequence.key, sequence.state.get());
  if (!refusal) return begun;
  EndGrant(sequence, grant->ticket);
  refusal->field = StepRowField(plan.row);
  return *std::move(refusal);
}

SequenceRow::SequenceRow(GrantedRow&& row)
    : RowRun(row.sequence.spec, std::move(row.plan), std::move(row.masks), std::move(row.grant.views)),
      sequence_(std::move(row.sequence)),
      ticket_(row.grant.ticket) {}

std::variant<RowResult, Refusal> SequenceRow::Commit() {
  auto refusal = Finish();
  if (refusal || plan().kind == RowPlan::Kind::kScore || sequence_.state == nullptr) {
    Abort();
    if (!refusal) return std::move(result());
    if (sequence_.state != nullptr && sequence_.state->retired()) return Sequence::ClosedInFlight();
    return *std::move(refusal);
  }
  auto ended = sequence_.state->Commit(ticket_, std::move(result()));
  sequence_.table->Touch(*sequence_.key, sequence_.state.get());
  Release();
  return ended;
}

void SequenceRow::Abort() {
  EndGrant(sequence_, ticket_);
  Release();
}

}  // namespace sortition::service

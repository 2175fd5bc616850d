// A row is the unit of the service: the logits of one sequence at one position or, with drafts, at several. This header
// shows a row's whole way, in five stages:
//
//   Plan    RowPlan says what the worker asks for, checked. service/request makes it from a message.
//   Grant   GrantRow asks the sequence. The sequence lets the row run and says what its history changes at each
//           position, or repeats the result of a step that it has answered before, or refuses.
//   Run     RowRun says what a kernel is asked at each position, and takes the kernel's outputs. The kernel may be a
//           device's or the caller's own. A compact row needs none: RowRun runs it.
//   Commit  RowRun::Commit decides which drafts are accepted and advances the sequence by the row's tokens, exactly
//           once. RowRun::Abort leaves the sequence as it was.
//   Result  RowResult is what the worker gets; service/result encodes it. A Refusal concerns this row alone.
//
// Messages, streams and devices are unknown here. Nothing blocks for longer than a table operation. A granted row holds
// its sequence until Commit or Abort; meanwhile other steps of the sequence are refused with STEP_IN_FLIGHT.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/inlined_vector.h"
#include "absl/functional/function_ref.h"
#include "kernels/row.h"
#include "service/memory/mask_memory.h"
#include "service/refusal.h"
#include "service/row/row_plan.h"
#include "service/row/walk.h"
#include "service/sequence/checkpoint.h"
#include "service/sequence/row_result.h"
#include "service/sequence/sequence.h"
#include "service/sequence/sequence_spec.h"
#include "service/sequence/sequence_table.h"

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

// Asks the sequence to run the row. Returns an empty grant if it keeps no state. `rewrites` bounds the rewrites of a
// whole step, as Sequence::Begin says. A refusal names the field of the step's row, and the sequence is as it was.
// Thread-safe.
std::variant<StepGrant, RowResult, Refusal> GrantRow(const RowSequence& sequence, const RowPlan& plan,
                                                     RewriteAllowance* rewrites);

// Bounds the work of a step's compact rows, which keeps a stream's thread from others: tokens and edits of all
// positions, some 10 ns each.
struct CompactAllowance {
  uint64_t left = uint64_t{1} << 22;
};

// A row with the data that it runs with.
struct GrantedRow {
  RowSequence sequence;  // without `state` if the caller keeps the history itself, and its views are in the grant
  RowPlan plan;
  std::vector<RowMaskBits> masks;  // one for each of plan.masks, empty unless that mask is packed
  StepGrant grant;                 // GrantRow's
};

// A row that has been granted. Its owner calls Commit or Abort once, which also releases the masks.
//
// Not thread-safe; distinct rows may be used by distinct threads at once, also rows of one sequence table. May be moved
// until the first RequestAt.
class RowRun {
 public:
  explicit RowRun(GrantedRow&& row);

  const SequenceSpec& spec() const { return *sequence_.spec; }
  const RowPlan& plan() const { return plan_; }
  const std::shared_ptr<ReceiptChain>& receipts() const { return sequence_.receipts; }

  // Number of positions that can run at once: all of them, or the first one if a sampler keeps a state or drafts are
  // tested together. In that case Take says which position follows.
  uint32_t first_positions() const { return runs_in_order_ ? 1 : plan_.positions(); }
  bool runs_in_order() const { return runs_in_order_; }

  // Replaces the compact rows of the plan, before they run: one for each position.
  void SetCompact(std::vector<kernels::StatedRow> rows) { plan_.compact = std::move(rows); }

  // Returns the row of the step's dense draft probabilities that belongs to position `index`, if any.
  std::optional<uint32_t> DraftRowAt(uint32_t index) const;
  // Returns the request to a kernel for position `index`, without the logits. `dense` has the probabilities of
  // DraftRowAt and is null without it. The request refers to this object and to `dense`.
  kernels::RowRequest RequestAt(uint32_t index, kernels::DType dtype, const void* dense,
                                kernels::DType draft_dtype) const;

  struct Next {
    uint32_t index = 0;
    uint64_t sampler_state = 0;                         // replaces the one of RequestAt
    uint64_t survival = kernels::RowRequest::kNoBlock;  // likewise, where RequestAt has one
    void Set(kernels::RowRequest* request) const;
  };
  struct Progress {
    bool is_complete = false;  // no further output is needed
    std::optional<Next> next;  // if runs_in_order(): the next position to ask for
  };
  // Takes the output of a position that was asked for: a PositionOutput, or what one is made of.
  template <typename Output>
  Progress Take(uint32_t index, Output&& output) {
    outputs_[index].emplace(std::forward<Output>(output));
    return Taken(index);
  }

  // Returns the dense draft probabilities of DraftRowAt(index), until the next call; null without them.
  using DenseAt = absl::FunctionRef<const void*(uint32_t index)>;
  // Runs every position of a row that is compact, here and now. Positions that are not decided become ROW_REQUIRED, and
  // so do those for which the allowance does not suffice.
  void RunCompact(DenseAt dense_at, kernels::DType draft_dtype, CompactAllowance* allowance);

  // Ends a row that is complete. Returns its result, or why it has none; then the sequence is as it was before the row.
  std::variant<RowResult, Refusal> Commit();
  // Ends the row without a result, complete or not: the sequence is as it was before the row.
  void Abort();

 private:
  Progress Taken(uint32_t index);
  uint32_t PhaseAt(uint32_t index) const { return grant_.views.empty() ? kNoPhase : grant_.views[index].phase; }
  const kernels::RowParameters& ParametersIn(uint32_t phase) const {
    return more_.empty() ? spec().Within(phase).parameters : more_[phase];
  }
  // Returns the tokens of the list `number` that the sequence allows in `phase`.
  std::span<const uint32_t> AllowedIn(uint32_t phase, size_t number) const;
  void CutToAllowed();
  // Fills `*result`, which is empty. Returns why there is none.
  std::optional<Refusal> Finish(RowResult* result);
  // Returns the position after `index` of a block whose drafts are tested together, if one is needed.
  std::optional<Next> NextOfBlock(uint32_t index);
  // Turns the outputs of the block's positions into those of a rejection that accepts the same drafts. Returns a
  // position that failed, if there is one.
  std::optional<uint32_t> EndBlock();
  // `why` is the output with which the position at `index` failed.
  Refusal WhyFailed(uint32_t index, const PositionOutput& why) const;
  // Names the options that leave no live token at a position.
  void NameMasks(uint32_t index, const PositionView* view, Refusal* refusal) const;
  Refusal WhyRequired() const;

  // Returns the number of the mask of position `index`; there is one for each position, or one for all.
  size_t MaskOf(uint32_t index) const { return plan_.masks.size() == 1 ? 0 : index; }
  void MergeBans();

  RowSequence sequence_;
  RowPlan plan_;
  std::vector<RowMaskBits> masks_;
  StepGrant grant_;
  // The edits of each position whose mask bans tokens, with these bans. Empty if no mask does.
  std::vector<std::vector<kernels::LogitEdit>> banned_edits_;
  // The lists of allowed tokens, cut to those of the sequence in a phase: by phase and number of the mask.
  absl::flat_hash_map<std::pair<uint32_t, size_t>, std::vector<uint32_t>> allowed_;
  std::vector<kernels::RowParameters> more_;  // of each phase, if the row asks for more than its sequence
  bool runs_in_order_;
  // kReject of a tree: of each position, its drafts after the first.
  std::vector<std::vector<uint32_t>> rivals_;
  // kBlock: the ids whose logprobs are asked for at each position with a draft, which is the last of them.
  std::vector<std::vector<uint32_t>> requested_;
  absl::InlinedVector<std::optional<PositionOutput>, 1> outputs_;  // absent: not taken yet
  uint32_t missing_;
};

// Returns the state of the samplers after the tokens of a result.
Checkpoint CheckpointAfter(const RowPlan& plan, const RowResult& result);

// Returns the field that names mask `number` of the plan.
std::string MaskField(const RowPlan& plan, size_t number);

// Returns why step row `row` is refused whose kernel found it unusable: `output.error` is not kNone.
Refusal RefusalOf(const kernels::RowOutput& output, uint32_t row);

}  // namespace sortition::service

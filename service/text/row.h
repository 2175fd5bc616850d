// A row is the unit of the service: the logits of one sequence at one position or, with drafts, at several. This header
// shows a row's whole way, in five stages:
//
//   Ask     RowAsk has a caller's request in plain values. service/wire makes it from a message, client/local from
//           a call.
//   Plan    JudgeRow checks it and makes a RowPlan of it, or a Refusal, which concerns this row alone.
//   Begin   The text gives its history's changes at each position (LookAhead). A text with an owner
//           (service/sequence) also repeats the result of a step that it has answered before, or refuses.
//   Run     RowRun says what a kernel is asked at each position, and takes the kernel's outputs. The kernel may be a
//           device's or the caller's own. A compact row needs none: RowRun runs it.
//   Commit  RowRun::Finish decides which drafts are accepted. Text::Commit advances the text by the result's
//           tokens, for each kind of row.
//
// Messages, streams, owners and devices are unknown here, and nothing blocks.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/inlined_vector.h"
#include "absl/functional/function_ref.h"
#include "kernels/row.h"
#include "service/memory/mask_memory.h"
#include "service/refusal.h"
#include "service/text/checkpoint.h"
#include "service/text/cost.h"
#include "service/text/look_ahead.h"
#include "service/text/row_plan.h"
#include "service/text/row_result.h"
#include "service/text/sequence_spec.h"

namespace sortition::service {

// Returns the request for a draw at `position`, without logits, masks, drafts and sampler state. `view` is null if the
// sequence keeps no state. The result refers to `spec` and `*view`. Thread-safe.
kernels::RowRequest MakeRowRequest(const SequenceSpec& spec, const PositionView* view, uint32_t position,
                                   uint32_t draw_salt);

// Call after masks are set. If the history forces a token, lets the row emit no other token; this overrides all other
// options.
void ForceToken(const PositionView* view, kernels::RowRequest* row);

// Holds all that a row runs with, apart from the options of its sequence.
struct RowParts {
  RowPlan plan;
  std::vector<RowMaskBits> masks;  // one for each of plan.masks, empty unless that mask is packed
  PositionViews views;             // LookAhead's; empty without a state
};

// A row that runs. Not thread-safe; distinct rows may be used by distinct threads at once. May be moved until the first
// RequestAt.
class RowRun {
 public:
  explicit RowRun(std::shared_ptr<const SequenceSpec> spec) : spec_(std::move(spec)) {}
  // Begins the row of the parts.
  RowRun(std::shared_ptr<const SequenceSpec> spec, RowPlan&& plan, std::vector<RowMaskBits>&& masks,
         PositionViews&& views)
      : spec_(std::move(spec)), parts_{std::move(plan), std::move(masks), std::move(views)} {
    Begin();
  }

  // Returns the parts, which are to be filled in before Begin.
  RowParts& parts() { return parts_; }
  // Begins the row. Another row may begin after a plain draw.
  void Begin();

  const SequenceSpec& spec() const { return *spec_; }
  const RowPlan& plan() const { return parts_.plan; }

  // Number of positions that can run at once: all of them, or the first one if a sampler keeps a state or drafts are
  // tested together. In that case Take says which position follows.
  uint32_t first_positions() const { return runs_in_order_ ? 1 : plan().positions(); }
  bool runs_in_order() const { return runs_in_order_; }

  // Replaces the compact rows of the plan, before they run: one for each position.
  void SetCompact(std::vector<kernels::StatedRow> rows) { parts_.plan.compact = std::move(rows); }

  // Returns the row of the step's dense draft probabilities that belongs to position `index`, if any.
  std::optional<uint32_t> DraftRowAt(uint32_t index) const {
    if (!plan().draft_row || !plan().FirstDraftAfter(index)) return std::nullopt;
    return *plan().draft_row + plan().DistributionOf(index);
  }
  // Returns the request to a kernel for position `index`, without the logits. `dense` has the probabilities of
  // DraftRowAt and is null without it. The request refers to this object and to `dense`.
  kernels::RowRequest RequestAt(uint32_t index, kernels::DType dtype, const void* dense,
                                kernels::DType draft_dtype) const;

  struct Next {
    uint32_t index = 0;
    uint64_t sampler_state = 0;                         // replaces RequestAt's
    uint64_t survival = kernels::RowRequest::kNoBlock;  // likewise, where RequestAt has one
    void Set(kernels::RowRequest* request) const;
  };
  struct Progress {
    bool is_complete = false;  // no further output is needed
    std::optional<Next> next;  // if runs_in_order(): the next position to request
  };
  // Return the place for the output of a requested position, and take what a kernel has written there.
  kernels::RowOutput* OutputAt(uint32_t index) { return &result_.outputs[index]; }
  Progress TakeWritten(uint32_t index);
  // Take the output of a requested position, or the refusal of a position that no kernel has run.
  Progress Take(uint32_t index, kernels::RowOutput&& output);
  Progress Take(uint32_t index, Refusal refusal);

  // Returns the dense draft probabilities of DraftRowAt(index), until the next call; null without them.
  using DenseAt = absl::FunctionRef<const void*(uint32_t index)>;
  // Runs every position of a compact row in this call. Positions that are not decided, or for which the bill does not
  // suffice, become ROW_REQUIRED.
  void RunCompact(DenseAt dense_at, kernels::DType draft_dtype, Bill* bill);

  // Ends a complete row. Returns its refusal; if there is none, the result is there. Called once.
  std::optional<Refusal> Finish();
  // Returns the result after Finish, without history hash and end.
  RowResult& result() { return result_; }
  // Releases the masks and the views; they are not read afterwards.
  void Release() {
    parts_.masks.clear();
    parts_.views.clear();
  }

 private:
  // Parts that a draw does not have.
  struct Extras {
    // Each position's edits with its mask's bans. Empty if no mask bans tokens.
    std::vector<PositionEdits> banned_edits;
    // The masks' allowed tokens that the sequence allows in a phase too: by phase and number of the mask.
    absl::flat_hash_map<std::pair<uint32_t, size_t>, std::vector<uint32_t>> allowed;
    std::vector<kernels::RowParameters> parameters;  // one a phase, if the row wants more than its sequence
    // kReject, tree: for each position, its drafts after the first.
    std::vector<std::vector<uint32_t>> rivals;
    // kBlock: for each position with a draft, the ids whose logprobs are requested; the draft is the last.
    std::vector<std::vector<uint32_t>> requested;
    std::vector<bool> missing;             // if the row runs in order: the positions that have not run
    std::map<uint32_t, Refusal> refusals;  // of positions that no kernel has run
  };

  Extras& extras() {
    if (extras_ == nullptr) extras_ = std::make_unique<Extras>();
    return *extras_;
  }
  uint32_t PhaseAt(uint32_t index) const { return parts_.views.empty() ? kNoPhase : parts_.views[index].phase; }
  const kernels::RowParameters& ParametersIn(uint32_t phase) const {
    return extras_ == nullptr || extras_->parameters.empty() ? spec().Within(phase).parameters
                                                             : extras_->parameters[phase];
  }
  // Returns the tokens of the list `number` that the sequence allows in `phase`.
  std::span<const uint32_t> AllowedIn(uint32_t phase, size_t number) const;
  // Fill in `extras`.
  void AddParameters();
  void CutToAllowed();
  void MergeBans();
  void ListRivals();
  // Returns the number of the mask of position `index`; there is one for each position, or one for all.
  size_t MaskOf(uint32_t index) const { return plan().masks.size() == 1 ? 0 : index; }

  bool IsMissing(uint32_t index) const { return runs_in_order_ && extras_->missing[index]; }
  // Returns the output of a position that was served; null if it failed or is missing.
  const kernels::RowOutput* ServedAt(uint32_t index) const {
    if (IsMissing(index) || (extras_ != nullptr && extras_->refusals.contains(index))) return nullptr;
    const kernels::RowOutput& output = result_.outputs[index];
    return output.error == kernels::RowFault::kNone ? &output : nullptr;
  }
  // Returns the draft that is accepted after a position that was served, if any; never one where nothing is verified.
  std::optional<uint32_t> AcceptedAfter(uint32_t index) const;
  // Returns true if the walk ends at the accepted draft `token`: a stop token, or one that completes a stop sequence or
  // the like. After it the text is at `position`.
  bool EndsAt(uint32_t token, uint32_t position) const;
  // Returns the position that the walk visits after `index`; absent if it ends there.
  std::optional<uint32_t> PositionAfter(uint32_t index) const;
  // Walks from position 0 along the accepted drafts and makes the result of the outputs on the way. The walk ends at
  // the first position whose draft is rejected, and at an accepted draft where EndsAt is true. Outputs behind that end
  // are ignored and may be errors or missing. Returns a position that failed, if the result needs it.
  std::optional<uint32_t> Walk();
  // Returns a position that failed, where the result needs all of them.
  std::optional<uint32_t> FindFailed() const {
    for (uint32_t index = 0; index < plan().positions(); ++index) {
      if (ServedAt(index) == nullptr) return index;
    }
    return std::nullopt;
  }
  // Returns the position after `index` of a block whose drafts are tested together, if one is needed.
  std::optional<Next> NextOfBlock(uint32_t index);
  // Turns the outputs of the block's positions into the outputs of a rejection that accepts the same drafts. Returns a
  // position that failed, if there is one.
  std::optional<uint32_t> EndBlock();

  // Returns why the position at `index` failed.
  Refusal WhyFailed(uint32_t index) const;
  // Names the options that leave no live token at a position.
  void NameMasks(uint32_t index, const PositionView* view, Refusal* refusal) const;
  Refusal WhyRequired() const;

  std::shared_ptr<const SequenceSpec> spec_;
  RowParts parts_;
  std::unique_ptr<Extras> extras_;  // null if the row has none
  bool runs_in_order_ = false;
  uint32_t missing_ = 0;
  RowResult result_;  // before the walk its outputs are those of all positions
};

// Returns the state of the samplers after the tokens of a result.
inline Checkpoint CheckpointAfter(const RowPlan& plan, const RowResult& result) {
  return {result.outputs.back().sampler_state, plan.intent.position + static_cast<uint32_t>(result.outputs.size()),
          result.history_hash.value_or(0)};
}

// Returns the field that names mask `number` of the plan.
std::string MaskField(const RowPlan& plan, size_t number);

// Returns the refusal of step row `row` for its kernel's error, `output.error`, which is not kNone.
Refusal ToRefusal(const kernels::RowOutput& output, uint32_t row);

}  // namespace sortition::service

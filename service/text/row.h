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
#include "service/text/checkpoint.h"
#include "service/text/cost.h"
#include "service/text/look_ahead.h"
#include "service/text/row_plan.h"
#include "service/text/row_result.h"
#include "service/text/sequence_spec.h"
#include "service/text/walk.h"

namespace sortition::service {

// Returns the request for a draw at `position`, without logits, masks, drafts and sampler state. `view` is null if the
// sequence keeps no state. The result refers to `spec` and `*view`. Thread-safe.
kernels::RowRequest MakeRowRequest(const SequenceSpec& spec, const PositionView* view, uint32_t position,
                                   uint32_t draw_salt);

// Call after masks are set. If the history forces a token, lets the row emit no other token; this overrides all other
// options.
void ForceToken(const PositionView* view, kernels::RowRequest* row);

// A row that runs. Not thread-safe; distinct rows may be used by distinct threads at once. May be moved until the first
// RequestAt.
class RowRun {
 public:
  // `masks`: one for each of plan.masks, empty unless that mask is packed. `views`: LookAhead's, empty without a state.
  RowRun(std::shared_ptr<const SequenceSpec> spec, RowPlan&& plan, std::vector<RowMaskBits>&& masks,
         PositionViews&& views);

  const SequenceSpec& spec() const { return *spec_; }
  const RowPlan& plan() const { return plan_; }

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
    uint64_t sampler_state = 0;                         // replaces RequestAt's
    uint64_t survival = kernels::RowRequest::kNoBlock;  // likewise, where RequestAt has one
    void Set(kernels::RowRequest* request) const;
  };
  struct Progress {
    bool is_complete = false;  // no further output is needed
    std::optional<Next> next;  // if runs_in_order(): the next position to request
  };
  // Takes the output of a requested position: a PositionOutput, or the arguments of one.
  template <typename Output>
  Progress Take(uint32_t index, Output&& output) {
    outputs_[index].emplace(std::forward<Output>(output));
    return Taken(index);
  }

  // Returns the dense draft probabilities of DraftRowAt(index), until the next call; null without them.
  using DenseAt = absl::FunctionRef<const void*(uint32_t index)>;
  // Runs every position of a compact row in this call. Positions that are not decided, or for which the bill does not
  // suffice, become ROW_REQUIRED.
  void RunCompact(DenseAt dense_at, kernels::DType draft_dtype, Bill* bill);

  // Ends a complete row. Returns its result, without history hash and end, or its refusal. Called once.
  std::variant<RowResult, Refusal> Finish();
  // Releases the masks; they are not read afterwards.
  void ReleaseMasks() { masks_.clear(); }

 private:
  Progress Taken(uint32_t index);
  uint32_t PhaseAt(uint32_t index) const { return views_.empty() ? kNoPhase : views_[index].phase; }
  const kernels::RowParameters& ParametersIn(uint32_t phase) const {
    return more_.empty() ? spec().Within(phase).parameters : more_[phase];
  }
  // Returns the tokens of the list `number` that the sequence allows in `phase`.
  std::span<const uint32_t> AllowedIn(uint32_t phase, size_t number) const;
  void CutToAllowed();
  // Returns the position after `index` of a block whose drafts are tested together, if one is needed.
  std::optional<Next> NextOfBlock(uint32_t index);
  // Turns the outputs of the block's positions into the outputs of a rejection that accepts the same drafts. Returns a
  // position that failed, if there is one.
  std::optional<uint32_t> EndBlock();
  // `why` is the failed output of the position at `index`.
  Refusal WhyFailed(uint32_t index, const PositionOutput& why) const;
  // Names the options that leave no live token at a position.
  void NameMasks(uint32_t index, const PositionView* view, Refusal* refusal) const;
  Refusal WhyRequired() const;

  // Returns the number of the mask of position `index`; there is one for each position, or one for all.
  size_t MaskOf(uint32_t index) const { return plan_.masks.size() == 1 ? 0 : index; }
  void MergeBans();

  std::shared_ptr<const SequenceSpec> spec_;
  RowPlan plan_;
  std::vector<RowMaskBits> masks_;
  PositionViews views_;
  // Each position's edits with its mask's bans. Empty if no mask bans tokens.
  std::vector<PositionEdits> banned_edits_;
  // The masks' allowed tokens that the sequence allows in a phase too: by phase and number of the mask.
  absl::flat_hash_map<std::pair<uint32_t, size_t>, std::vector<uint32_t>> allowed_;
  std::vector<kernels::RowParameters> more_;  // one a phase, if the row wants more than its sequence
  bool runs_in_order_;
  // kReject, tree: for each position, its drafts after the first.
  std::vector<std::vector<uint32_t>> rivals_;
  // kBlock: for each position with a draft, the ids whose logprobs are requested; the draft is the last.
  std::vector<std::vector<uint32_t>> requested_;
  absl::InlinedVector<std::optional<PositionOutput>, 1> outputs_;  // absent: not taken yet
  uint32_t missing_;
};

// Returns the state of the samplers after the tokens of a result.
Checkpoint CheckpointAfter(const RowPlan& plan, const RowResult& result);

// Returns the field that names mask `number` of the plan.
std::string MaskField(const RowPlan& plan, size_t number);

// Returns the refusal of step row `row` for its kernel's error, `output.error`, which is not kNone.
Refusal ToRefusal(const kernels::RowOutput& output, uint32_t row);

}  // namespace sortition::service

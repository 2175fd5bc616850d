// One sequence with state: its owner, its history, the step in flight and the last answer. The rules of steps and
// retries.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "kernels/row.h"
#include "service/refusal.h"
#include "service/sequence/look_ahead.h"
#include "service/sequence/row_result.h"
#include "service/sequence/sequence_spec.h"
#include "service/sequence/sequence_state.h"

namespace sortition::service {

// Who may step a sequence. The highest epoch owns it; `stream` tells apart two streams of one epoch.
struct SequenceOwner {
  uint64_t epoch = 0;
  uint64_t stream = 0;  // unique per session in the process
  bool operator==(const SequenceOwner&) const = default;
};

struct SequencePosition {
  uint32_t position = 0;  // tokens in the history
  uint64_t history_hash = 0;
  uint64_t last_step_id = 0;
};

// A place in a text.
struct TextPlace {
  uint32_t position = 0;
  uint64_t history_hash = 0;
  bool operator==(const TextPlace&) const = default;
};

// One step as its worker describes it.
struct StepIntent {
  uint64_t step_id = 0;
  uint32_t position = 0;
  std::optional<uint64_t> history_hash;
  std::optional<TextPlace> checkpoint;  // where the state of samplers that it brings was left
  std::optional<uint32_t> truncate_to;
  std::vector<uint32_t> append_tokens;
  uint64_t options_digest = 0;  // of everything else that may change the answer
};

// How many tokens the steps of one message may cut off histories and append to them, since whoever takes the message
// serves nobody else meanwhile: some 10 ms of rewrites. The first row that rewrites always may; what is more is
// history, which is taken in pieces.
class RewriteAllowance {
 public:
  static constexpr uint32_t kTokens = 16'384;

  // `cost`: tokens, by SequenceState::rewrite_cost(). False, and nothing is taken, if it is too much.
  bool Take(uint64_t cost) {
    if (cost > left_ && left_ < kTokens) return false;
    left_ -= std::min(cost, left_);
    return true;
  }

 private:
  uint64_t left_ = kTokens;
};

// A step that may run: what it sees at each position, and the ticket with which its result comes back.
struct StepGrant {
  uint64_t ticket = 0;
  PositionViews views;
};

// Thread-safe.
class Sequence {
 public:
  Sequence(SequenceOwner owner, std::shared_ptr<const SequenceSpec> spec, uint32_t kept_history);

  // Ownership. TakeOver refuses as SequenceTable::Open describes; a step in flight for another owner is abandoned: its
  // result will be refused. The state becomes `*replayed` if that is given, which is taken unless refused; it is kept
  // if it was built under an equal spec, dropped otherwise (HISTORY_REQUIRED).
  std::variant<SequencePosition, Refusal> TakeOver(const SequenceOwner& owner, std::shared_ptr<const SequenceSpec> spec,
                                                   std::unique_ptr<SequenceState>* replayed);

  // Starts a step. Returns the grant, or the step's result if it has been answered already, or a refusal, which changes
  // nothing.
  // `ahead`: tokens after which the step has further positions. `rewrites`, which may be null, pays for the intent's;
  // rewrites that are refused for another reason are paid for, too.
  std::variant<StepGrant, RowResult, Refusal> Begin(const SequenceOwner& owner, const StepIntent& intent,
                                                    const TokenTree& ahead = {}, RewriteAllowance* rewrites = nullptr);

  // Ends the step of `ticket` with its tokens: the state advances by the intent's rewrites and by them, exactly once.
  // Returns the result with its history hash, and keeps it for retries.
  // Refused with SUPERSEDED if another owner has taken over meanwhile, with STEP_CANCELLED if the sequence was closed.
  // Neither after Commit nor after Abort does anybody read the grant's edits.
  std::variant<RowResult, Refusal> Commit(uint64_t ticket, RowResult result);

  // Ends the step of `ticket` without a token; the state stays what it was before the step.
  void Abort(uint64_t ticket);

  // The state that a sequence of `spec` goes on from, which has this one's history up to `position` (absent: all of
  // it). Refuses where a step is in flight, and what is not kept any more with HISTORY_REQUIRED.
  std::variant<std::unique_ptr<SequenceState>, Refusal> Fork(const SequenceOwner& owner,
                                                             std::shared_ptr<const SequenceSpec> spec,
                                                             std::optional<uint32_t> position);
  std::variant<SequenceSnapshot, Refusal> Export(const SequenceOwner& owner) const;

  // The table forgets this object for good: drops the state, abandons a step in flight; later steps get
  // HISTORY_REQUIRED.
  void Retire();
  // Retires it if no step is in flight; false if one is.
  bool RetireIfIdle();
  bool retired() const;

  bool OwnedBy(const SequenceOwner& owner) const;
  uint64_t bytes() const;

 private:
  void RetireLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  Refusal Superseded(std::string field) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  std::optional<Refusal> WhyNotReadable(const SequenceOwner& owner) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  struct InFlight {
    uint64_t ticket;
    uint64_t step_id;
    uint64_t digest;
    SequenceState::Undo undo;  // of the step's rewrites, already applied
    uint64_t view_bytes = 0;   // of the grant's edits, but for the state's own
  };
  struct LastStep {
    uint64_t step_id;
    uint64_t digest;
    RowResult result;
  };

  const uint32_t kept_history_;
  mutable absl::Mutex mutex_;
  SequenceOwner owner_ ABSL_GUARDED_BY(mutex_);
  std::shared_ptr<const SequenceSpec> spec_ ABSL_GUARDED_BY(mutex_);
  uint64_t spec_bytes_ ABSL_GUARDED_BY(mutex_);
  std::unique_ptr<SequenceState> state_ ABSL_GUARDED_BY(mutex_);  // null: unknown, a replay is needed
  std::optional<InFlight> in_flight_ ABSL_GUARDED_BY(mutex_);
  std::optional<LastStep> last_ ABSL_GUARDED_BY(mutex_);
  uint64_t next_ticket_ ABSL_GUARDED_BY(mutex_) = 1;
  bool retired_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace sortition::service

// One sequence with state: its owner, history, step in flight and last answer, and the rules of steps and retries.
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
#include "service/limits.h"
#include "service/refusal.h"
#include "service/text/cost.h"
#include "service/text/look_ahead.h"
#include "service/text/row_plan.h"
#include "service/text/row_result.h"
#include "service/text/sequence_spec.h"
#include "service/text/text.h"

namespace sortition::service {

// The right to step a sequence. The highest epoch owns it; `stream` distinguishes streams of one epoch.
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

// Grant: the right to run a step, with the history that it sees at each position. The ticket identifies its result.
struct StepGrant {
  uint64_t ticket = 0;
  PositionViews views;
};

// The result of a step that was answered already.
struct RepeatedResult {
  std::shared_ptr<const RowResult> result;
  uint64_t bytes = 0;  // of memory
};

// Thread-safe.
class Sequence {
 public:
  Sequence(SequenceOwner owner, std::shared_ptr<const SequenceSpec> spec, uint32_t kept_history);

  // Transfers ownership. Refuses as SequenceTable::Open describes. A step in flight for another owner is abandoned: its
  // result will be refused. The state becomes `*replayed`, if that is given and not refused. Otherwise it is kept if it
  // was built under an equal spec, and dropped if not (HISTORY_REQUIRED). `*replaced` is what was the state before, for
  // the caller to destroy.
  std::variant<SequencePosition, Refusal> TakeOver(const SequenceOwner& owner, std::shared_ptr<const SequenceSpec> spec,
                                                   std::unique_ptr<Text>* replayed, std::unique_ptr<Text>* replaced);

  // Starts a step. Returns the grant, or the step's result if it was answered already, or a refusal, which changes
  // nothing. `ahead`: tokens after which the step has further positions. `bill`, which may be null, is charged for the
  // intent's rewrites and the edits that its positions see, even if they are refused for another reason, and for a
  // result that is repeated.
  std::variant<StepGrant, RepeatedResult, Refusal> Begin(const SequenceOwner& owner, const StepIntent& intent,
                                                         const TokenTree& ahead = {}, Bill* bill = nullptr);

  // Ends the step of `ticket` with its tokens: the state advances by the intent's rewrites and these tokens, exactly
  // once. Returns the result with its history hash, and keeps it for retries if it has at most kMaxRepeatedBytes.
  // Refuses with SUPERSEDED if another owner has taken over meanwhile, with STEP_CANCELLED if the sequence was closed.
  // The caller must not read the grant's edits after Commit or Abort.
  std::variant<RowResult, Refusal> Commit(uint64_t ticket, RowResult result);

  // Ends the step of `ticket` without a token; the state is as before the step.
  void Abort(uint64_t ticket);

  // Returns a state for a sequence of `spec` that continues this one's history from `position` (absent: its end).
  // Charges `bill`. Refuses if a step is in flight, and with HISTORY_REQUIRED if that part of the history is not kept
  // any more or is too much work. The
  // refusal's field is "position" if that is at fault, otherwise empty.
  std::variant<std::unique_ptr<Text>, Refusal> Fork(const SequenceOwner& owner,
                                                    std::shared_ptr<const SequenceSpec> spec,
                                                    std::optional<uint32_t> position, Bill* bill);

  // These end this object when the table forgets it: they drop the state and abandon a step in flight. Later steps get
  // HISTORY_REQUIRED.
  // `*state` is what was the state, for the caller to destroy outside of locks.
  // Retires it unless an epoch above `epoch` owns it: refuses that with SUPERSEDED.
  std::optional<Refusal> RetireUpTo(uint64_t epoch, std::unique_ptr<Text>* state);
  // Retires it if it is not in use; returns false, without waiting, if a step is in flight or another thread works on
  // it.
  bool RetireIfIdle(std::unique_ptr<Text>* state);
  bool retired() const;
  // Returns the refusal of a step if its sequence was retired meanwhile.
  static Refusal ClosedInFlight();

  uint64_t bytes() const;

 private:
  // Returns what was the state. To destroy one takes long, and is done after the lock's release.
  std::unique_ptr<Text> RetireLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  Refusal Superseded(std::string field) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  std::optional<Refusal> CheckRewrites(const StepIntent& intent, Bill* bill) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  struct InFlight {
    uint64_t ticket;
    uint64_t step_id;
    uint64_t digest;
    Text::Undo undo;          // undoes the step's rewrites
    uint64_t view_bytes = 0;  // of the grant's edits, without the state's
  };
  struct LastStep {
    uint64_t step_id;
    uint64_t digest;
    std::shared_ptr<const RowResult> result;  // null if it was too long
    uint64_t bytes = 0;                       // of it
  };

  const uint32_t kept_history_;
  mutable absl::Mutex mutex_;
  SequenceOwner owner_ ABSL_GUARDED_BY(mutex_);
  std::shared_ptr<const SequenceSpec> spec_ ABSL_GUARDED_BY(mutex_);
  uint64_t spec_bytes_ ABSL_GUARDED_BY(mutex_);
  std::unique_ptr<Text> state_ ABSL_GUARDED_BY(mutex_);  // null: unknown, a replay is needed
  std::optional<InFlight> in_flight_ ABSL_GUARDED_BY(mutex_);
  std::optional<LastStep> last_ ABSL_GUARDED_BY(mutex_);
  uint64_t next_ticket_ ABSL_GUARDED_BY(mutex_) = 1;
  bool retired_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace sortition::service

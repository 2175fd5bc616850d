// The history of one sequence and what its options see of it, kept incrementally.
//
// Memory is O(distinct tokens + kept history), never O(vocabulary) or O(history), unless an option looks at all of the
// history. Equal to a state rebuilt from the whole history after every step, byte for byte.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <variant>
#include <vector>

#include "kernels/row.h"
#include "service/sequence/edit_log.h"
#include "service/sequence/history_index.h"
#include "service/sequence/penalty_counts.h"
#include "service/sequence/sequence_snapshot.h"
#include "service/sequence/sequence_spec.h"
#include "service/sequence/step_changes.h"
#include "service/sequence/token_log.h"

namespace sortition::service {

// Not thread-safe. Token ids have been checked against the live vocabulary.
class SequenceState {
 public:
  // A history that comes in pieces. Its memory is that of the state it becomes. Not thread-safe.
  class Builder {
   public:
    // `kept_history`: how many tokens back the history can be truncated at least.
    Builder(std::shared_ptr<const SequenceSpec> spec, uint32_t prompt_length, uint32_t kept_history);
    void Add(std::span<const uint32_t> tokens);
    uint32_t length() const { return log_.length(); }
    uint32_t prompt_length() const { return prompt_length_; }
    const SequenceSpec& spec() const { return *spec_; }
    uint64_t bytes() const;
    // Needs prompt_length() <= length(). Once. Of the builder's own spec, `spec` differs in its seed alone.
    std::unique_ptr<SequenceState> Finish(std::shared_ptr<const SequenceSpec> spec);

   private:
    const std::shared_ptr<const SequenceSpec> spec_;
    const uint32_t prompt_length_;
    const uint32_t kept_history_;
    TokenLog log_;
    PenaltyCounts::Counts counts_;
    std::shared_ptr<HistoryIndex> index_;  // null if no option needs one
  };

  static std::unique_ptr<SequenceState> Build(std::shared_ptr<const SequenceSpec> spec,
                                              std::span<const uint32_t> tokens, uint32_t prompt_length,
                                              uint32_t kept_history);

  uint32_t position() const { return log_.length(); }
  uint64_t history_hash() const { return HistoryHash(log_.chain(), prompt_length_, digest_); }
  uint32_t prompt_length() const { return prompt_length_; }
  // Truncation below this position needs a replay.
  uint32_t lowest_truncation() const { return static_cast<uint32_t>(LowestTruncation(*spec_)); }
  uint64_t bytes() const;
  const SequenceSpec& spec() const { return *spec_; }
  // What it costs to append or cut a token, in tokens of a history without an index and with few distinct tokens.
  uint64_t rewrite_cost() const { return 1 + (index_ ? 7 : 0) + counts_->edits().size() / 4096; }

  // Lends the edits that the next row sees: listed bias and bans, and what the history adds. They stay as they
  // are until EndLoan, which the borrower's owner calls once nobody reads them any more. If it cannot tell when that
  // is, it calls LeaveLoan instead: the edits are then left to the borrower, and this state goes on with a copy.
  std::shared_ptr<const std::vector<kernels::LogitEdit>> LendEdits();
  void EndLoan() { lent_ = merged_lent_ = false; }
  void LeaveLoan();
  // A copy of the same edits; null if they are those that had the trail `known`.
  std::shared_ptr<const std::vector<kernels::LogitEdit>> CopyEdits(const EditLog& known);
  // The name of the edits that were lent or copied last, as long as nothing has been rewritten since.
  const EditLog& edit_log() const { return trail_; }

  // Rewrites between the two are all reverted: the edits, once lent again, have the name that they had before. What was
  // lent or copied meanwhile has none.
  struct NamedEdits {
    EditLog trail;
    std::vector<StepChange> changes;
  };
  NamedEdits LeaveNames();
  void ReturnTo(NamedEdits named);

  // The token that comes next whatever the row says, if there is one.
  std::optional<uint32_t> forced_token() const { return ForcedToken(spec_->history, position(), prompt_length_); }

  // What stands for the seed of the next draw's noise, at position 0; absent without a watermark.
  std::optional<uint64_t> watermark_seed() const;

  // A drawn token, which is there to stay.
  void Append(uint32_t token);

  // What Rewrite changed, to take it back.
  struct Undo {
    std::vector<uint32_t> removed;  // tokens cut off, in order
    uint32_t appended = 0;
    uint32_t prompt_length = 0;  // before the cut
  };
  // Truncates to `truncate_to` (lowest_truncation() <= it <= position()), then appends. A cut into the prompt shortens
  // the prompt. Returns how to undo it; until the next Append it can be.
  Undo Rewrite(std::optional<uint32_t> truncate_to, std::span<const uint32_t> append);
  void Revert(const Undo& undo);

  // The state of a sequence that goes on from `position` of this one under `spec`, whose vocabularies are the same;
  // null if its options look at more of the history than is kept. Shares what is equal. lowest_truncation() <=
  // position <= position().
  std::unique_ptr<SequenceState> Fork(std::shared_ptr<const SequenceSpec> spec, uint32_t position);

  // What another process needs to go on, and the state made of it; null if it contradicts itself or belongs to another
  // spec.
  SequenceSnapshot Snapshot() const;
  static std::unique_ptr<SequenceState> FromSnapshot(std::shared_ptr<const SequenceSpec> spec,
                                                     const SequenceSnapshot& snapshot, uint32_t kept_history);

 private:
  SequenceState(std::shared_ptr<const SequenceSpec> spec, TokenLog log, uint32_t prompt_length, uint32_t kept_history,
                const PenaltyCounts::Counts& counts, std::shared_ptr<HistoryIndex> index);

  // For a state of these options with this log.
  uint64_t LowestTruncation(const SequenceSpec& spec) const;
  PenaltyCounts& OwnCounts();
  HistoryIndex& OwnIndex();
  // Finds step_changes_ for the next row.
  void ChangeForStep();
  void Count(uint32_t position, int32_t change);
  void Push(uint32_t token);
  void Truncate(uint32_t position);

  std::shared_ptr<const SequenceSpec> spec_;
  uint32_t kept_history_;
  uint64_t digest_;
  uint32_t prompt_length_;
  TokenLog log_;
  std::shared_ptr<PenaltyCounts> counts_;
  // Somebody else reads *counts_, for the time of a loan or for longer: it is copied before it is written.
  bool lent_ = false;
  bool shared_ = false;
  std::shared_ptr<HistoryIndex> index_;  // null if no option needs one
  bool index_shared_ = false;            // with forks: it is copied before it is written
  // The edits of the last step that changed something beside the counts.
  std::shared_ptr<std::vector<kernels::LogitEdit>> merged_;
  bool merged_lent_ = false;
  EditLog trail_ = EditLog::OfNewList();
  std::vector<StepChange> step_changes_;  // in the edits that were lent or copied last
};

}  // namespace sortition::service

// State of one sequence: its history and data that options derive from it, updated incrementally.
//
// Memory is O(distinct tokens + kept history), never O(vocabulary) or O(history), unless an option looks at the whole
// history. After every step the state equals one rebuilt from the whole history, byte for byte.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <variant>
#include <vector>

#include "kernels/row.h"
#include "service/text/history/history_index.h"
#include "service/text/history/penalty_counts.h"
#include "service/text/history/token_log.h"
#include "service/text/row_result.h"
#include "service/text/sequence_spec.h"
#include "service/text/step_changes.h"
#include "service/text/text_end.h"

namespace sortition::service {

// Returns the lowest position to which a state with this log, whose options look back this far, can be cut.
inline uint64_t LowestTruncation(uint32_t lookback, const TokenLog& log) {
  return log.kept_from() == 0 ? 0 : uint64_t{log.kept_from()} + lookback;
}

// Returns the time that it takes to append a token to a history, or to cut one off, in times of one that has no index
// and no phases.
inline uint64_t RewriteTimes(bool has_index, size_t phases) { return 1 + (has_index ? 7 : 0) + 2 * phases; }
inline uint64_t RewriteTimes(const SequenceSpec& spec) {
  return RewriteTimes(HistoryIndex::Needed(spec.history), spec.history.phases.size());
}

// Not thread-safe. The caller has checked token ids against the live vocabulary.
class Text {
 public:
  // Builds a state from a history that arrives in pieces. Uses the memory of the state. Not thread-safe.
  class Builder {
   public:
    // `kept_history`: least number of tokens that can be truncated.
    Builder(std::shared_ptr<const SequenceSpec> spec, uint32_t prompt_length, uint32_t kept_history);
    void Add(std::span<const uint32_t> tokens);
    uint32_t length() const { return log_.length(); }
    uint32_t prompt_length() const { return prompt_length_; }
    const SequenceSpec& spec() const { return *spec_; }
    uint64_t bytes() const;
    // Requires prompt_length() <= length(). Called once. `spec` may differ from the builder's, but not in options that
    // look at the history, nor in that there are penalties.
    std::unique_ptr<Text> Finish(std::shared_ptr<const SequenceSpec> spec);
    // Does a piece of the work of Finish, under its spec, once all tokens are added. Returns false if none is left.
    bool Prepare(const SequenceSpec& spec);
    // Counts the edits of a piece, which may have a few thousand more.
    static constexpr size_t kPieceEdits = 1 << 16;

   private:
    const std::shared_ptr<const SequenceSpec> spec_;
    const uint32_t prompt_length_;
    const uint32_t kept_history_;
    const bool penalises_;
    const uint32_t lookback_;
    TokenLog log_;
    TokenCounter counter_;
    std::shared_ptr<PenaltyCounts> counts_;  // of tokens below counted_to_; null before Prepare
    uint32_t counted_to_ = 0;
    PhaseTrack phases_;
    std::unique_ptr<HistoryIndex> index_;  // null if no option needs one
  };

  static std::unique_ptr<Text> Build(std::shared_ptr<const SequenceSpec> spec, std::span<const uint32_t> tokens,
                                     uint32_t prompt_length, uint32_t kept_history);

  uint32_t position() const { return log_.length(); }
  // Returns the tokens that are kept: all of them if `kept_history` was not exceeded.
  std::vector<uint32_t> Tokens() const;
  uint64_t history_hash() const { return HistoryHash(log_.token_hash(), prompt_length_, spec_->digest()); }
  uint32_t prompt_length() const { return prompt_length_; }
  // Lowest position that the history can be truncated to without a replay.
  uint32_t lowest_truncation() const { return static_cast<uint32_t>(LowestTruncation(lookback_, log_)); }
  uint64_t bytes() const;
  const SequenceSpec& spec() const { return *spec_; }
  // Returns how often each token in the scope of penalties occurs. Valid until the state changes.
  const PenaltyCounts& counts() { return SettledCounts(); }

  // Returns what the options change in the next step alone.
  StepChanges ChangesNow() const { return ChangesOfStep(spec_->history, log_, prompt_length_, index_.get()); }
  // Lends the edits that the next row sees: listed bias and bans, and those that follow from the history. `changes` is
  // ChangesNow(). They do not change until EndLoan, which must be called after the last read. A caller that cannot know
  // of the last read calls LeaveLoan instead: the borrower keeps the edits, and this state continues with a copy.
  std::shared_ptr<const std::vector<kernels::LogitEdit>> LendEdits(const StepChanges& changes);
  std::shared_ptr<const std::vector<kernels::LogitEdit>> LendEdits() { return LendEdits(ChangesNow()); }
  // Returns the price of LendEdits, and of ChangesNow(), with this number of changes.
  uint64_t LendCost(uint64_t changes) const;
  // Returns the number of tokens that ChangesNow() looks at for n-grams, which a long history may have many of.
  uint64_t LooksForNgrams() const { return index_ ? index_->LooksForNgrams(log_) : 0; }
  void EndLoan() { lent_ = merged_lent_ = false; }
  void LeaveLoan();

  // The token that is emitted next in any case, if the options force one.
  std::optional<uint32_t> forced_token() const {
    return phases_.Forced(spec_->history.phases, position(), prompt_length_);
  }
  // The phase that holds at the next position.
  uint32_t phase() const { return phases_.now().phase; }

  // Returns the end of the text, as a function of the history.
  TextEnd text_end() const { return FindEnd(spec_->history, log_, prompt_length_); }

  // The noise of the next draw; absent where no watermark marks it.
  std::optional<kernels::NoiseKey> marked_noise() const;

  // Appends a drawn token.
  void Append(uint32_t token);
  // Ends a loan, appends the tokens of a result, and sets its hash and end. The only way in which rows advance a text.
  void Commit(RowResult* result);

  // Changes of a Rewrite, to revert it.
  struct Undo {
    std::vector<uint32_t> removed;  // tokens cut off, in order
    uint32_t appended = 0;
    uint32_t prompt_length = 0;  // before the cut
  };
  // Truncates to `truncate_to`, between lowest_truncation() and position(), then appends. A cut into the prompt
  // shortens the prompt. The returned Undo is valid until the next Append.
  Undo Rewrite(std::optional<uint32_t> truncate_to, std::span<const uint32_t> append);
  void Revert(const Undo& undo);

  // Appends a token that is cut off again before the state changes otherwise, and cuts it off. Between the two, what
  // the state finds in its history is that of the longer history, but it lends no edits: uncounted() has the changes of
  // its counts.
  void PushAhead(uint32_t token);
  void PopAhead() { Truncate(position() - 1); }
  const std::vector<CountChange>& uncounted() const { return uncounted_; }

  // Returns a state that continues this one from `position`, between lowest_truncation() and position(), under `spec`,
  // which has the same vocabulary sizes. Null if its options look at more of the history than is kept. The two share
  // equal parts.
  std::unique_ptr<Text> Fork(std::shared_ptr<const SequenceSpec> spec, uint32_t position);
  // Returns the price of a Fork.
  uint64_t ForkCost(const SequenceSpec& spec, uint32_t position) const;

 private:
  Text(std::shared_ptr<const SequenceSpec> spec, TokenLog log, uint32_t prompt_length, uint32_t kept_history,
       std::shared_ptr<PenaltyCounts> counts, PhaseTrack phases, std::unique_ptr<HistoryIndex> index);

  // The parts of the history that a fork under `spec` reads anew.
  struct Reread {
    bool counts = false;
    bool phases = false;
    bool index = false;
    bool any() const { return counts || phases || index; }
  };
  Reread FindReread(const SequenceSpec& spec) const;
  // The phase under whose options a fork under `spec` counts.
  uint32_t CountedPhase(const SequenceSpec& spec) const {
    return counted_phase_ <= spec.history.phases.size() ? counted_phase_ : kNoPhase;
  }
  // Returns true if counts of this text are those of a fork under `spec`, with the same edits.
  bool SharesCounts(const SequenceSpec& spec) const;
  // Returns true if counting the first `position` tokens takes less than not counting those after them.
  bool CountsFewer(uint32_t position) const { return log_.kept_from() == 0 && position < this->position() - position; }
  // Returns the counts of all tokens.
  const PenaltyCounts& SettledCounts();
  // Counts all tokens, under the options of the phase.
  void CountWithinPhase();
  const PhaseOptions& counted() const { return spec_->Within(counted_phase_); }
  // Counts the token at `position`, which enters or leaves the scope of penalties.
  void Count(uint32_t position, int32_t change);
  // Counts that the tokens from `position` on are cut off.
  void Uncount(uint32_t position);
  void Push(uint32_t token);
  // Finds the phase and the counts after a token was appended.
  void Pushed();
  void CutLog(uint32_t position);
  void Truncate(uint32_t position);

  std::shared_ptr<const SequenceSpec> spec_;
  bool penalises_;     // as spec_ says, which looks at every phase for it
  uint32_t lookback_;  // likewise, at every phrase
  uint32_t kept_history_;
  uint32_t prompt_length_;
  TokenLog log_;
  PhaseTrack phases_;
  uint32_t counted_phase_;
  std::shared_ptr<PenaltyCounts> counts_;  // under the options of counted_phase_
  std::vector<CountChange> uncounted_;     // to be applied to them; one that reverts the last one takes it away
  // *counts_ is read elsewhere, during a loan or longer; it must be copied before it is written.
  bool lent_ = false;
  bool shared_ = false;
  std::unique_ptr<HistoryIndex> index_;  // null if no option needs one
  // Edits of the last step that changed more than the counts.
  std::shared_ptr<std::vector<kernels::LogitEdit>> merged_;
  bool merged_lent_ = false;
};

}  // namespace sortition::service

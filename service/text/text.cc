// Incremental history and counts of one sequence.
#include "service/text/text.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "kernels/check.h"
#include "kernels/law/watermark.h"
#include "service/text/cost.h"
#include "service/text/history/scope_counts.h"

namespace sortition::service {
namespace {

using kernels::LogitEdit;

// Forgets tokens and phases beyond those that are kept, so that `kept_history` tokens can be cut off.
void Trim(uint32_t lookback, uint32_t kept_history, TokenLog* log, PhaseTrack* phases) {
  const uint64_t kept = uint64_t{lookback} + kept_history;
  if (log->length() - log->kept_from() < kept + TokenLog::kChunkTokens) return;
  log->Trim(static_cast<uint32_t>(kept));
  phases->Trim(static_cast<uint32_t>(LowestTruncation(lookback, *log)));
}

// Return true if equal histories give equal counts, and equal phases.
bool SameCounts(const SequenceSpec& a, const SequenceSpec& b) {
  return a.penalises() == b.penalises() && a.history.scope.window == b.history.scope.window &&
         a.history.scope.ignored_prefix == b.history.scope.ignored_prefix;
}
bool SamePhases(const SequenceSpec& a, const SequenceSpec& b) {
  const auto same = [](const Phase& one, const Phase& other) { return one.SamePlaces(other); };
  return std::ranges::equal(a.history.phases, b.history.phases, same);
}

// Returns true if the changes take as much work and memory as the counts that they are to be applied to.
bool IsLong(const std::vector<CountChange>& changes, const PenaltyCounts& counts) {
  constexpr size_t kFew = 256;
  return changes.size() > kFew + counts.edits().size() / 2;
}

// Indexes the end of a history that `log` keeps; null if the options need no index.
std::unique_ptr<HistoryIndex> MakeIndex(const SequenceSpec& spec, const TokenLog& log) {
  if (!HistoryIndex::Needed(spec.history)) return nullptr;
  return std::make_unique<HistoryIndex>(spec.history, log);
}

}  // namespace

Text::Builder::Builder(std::shared_ptr<const SequenceSpec> spec, uint32_t prompt_length, uint32_t kept_history)
    : spec_(std::move(spec)),
      prompt_length_(prompt_length),
      kept_history_(kept_history),
      penalises_(spec_->penalises()),
      lookback_(spec_->history.lookback()),
      phases_(PhaseTrack::Of(spec_->history.phases, log_, prompt_length)),
      index_(MakeIndex(*spec_, log_)) {}

void Text::Builder::Add(std::span<const uint32_t> tokens) {
  const uint32_t window = spec_->history.scope.window;
  const auto count = [&](uint32_t position, int32_t change) {
    if (!InScope(*spec_, prompt_length_, position)) return;
    counter_.Count(ChangeOf(prompt_length_, position, log_.at(position), change));
  };
  for (uint32_t token : tokens) {
    log_.Push(token);
    if (penalises_) {
      count(log_.length() - 1, +1);
      if (window != 0 && log_.length() > window) count(log_.length() - 1 - window, -1);
    }
    if (index_) index_->Pushed(log_);
    const std::vector<Phase>& phases = spec_->history.phases;
    if (!phases.empty()) phases_.Pushed(phases, log_, log_.length(), prompt_length_);
    Trim(lookback_, kept_history_, &log_, &phases_);
  }
}

uint64_t Text::Builder::bytes() const {
  return sizeof(*this) + spec_->bytes() + log_.bytes() + phases_.bytes() + (index_ ? index_->bytes() : 0) +
         counter_.bytes() + (counts_ ? counts_->bytes() : 0);
}

bool Text::Builder::Prepare(const SequenceSpec& spec) {
  constexpr uint32_t kStep = 64 * TokenCounter::kPageTokens;
  static_assert(PenaltyCounts::kEnd % kStep == 0);
  if (counts_ == nullptr) counts_ = std::make_shared<PenaltyCounts>(spec, counter_.size());
  const size_t most = counts_->size() + kPieceEdits;
  for (; counted_to_ < PenaltyCounts::kEnd && counts_->size() < most; counted_to_ += kStep) {
    counts_->Extend(spec.history.scope, spec, counter_, counted_to_, counted_to_ + kStep);
  }
  return counted_to_ < PenaltyCounts::kEnd;
}

std::unique_ptr<Text> Text::Builder::Finish(std::shared_ptr<const SequenceSpec> spec) {
  SORTITION_CHECK(prompt_length_ <= log_.length());
  while (Prepare(*spec)) {
  }
  return std::unique_ptr<Text>(new Text(std::move(spec), std::move(log_), prompt_length_, kept_history_,
                                        std::move(counts_), std::move(phases_), std::move(index_)));
}

std::unique_ptr<Text> Text::Build(std::shared_ptr<const SequenceSpec> spec, std::span<const uint32_t> tokens,
                                  uint32_t prompt_length, uint32_t kept_history) {
  Builder builder(spec, prompt_length, kept_history);
  builder.Add(tokens);
  return builder.Finish(std::move(spec));
}

Text::Text(std::shared_ptr<const SequenceSpec> spec, TokenLog log, uint32_t prompt_length, uint32_t kept_history,
           std::shared_ptr<PenaltyCounts> counts, PhaseTrack phases, std::unique_ptr<HistoryIndex> index)
    : spec_(std::move(spec)),
      penalises_(spec_->penalises()),
      lookback_(spec_->history.lookback()),
      kept_history_(kept_history),
      prompt_length_(prompt_length),
      log_(std::move(log)),
      phases_(std::move(phases)),
      counted_phase_(kNoPhase),
      counts_(std::move(counts)),
      index_(std::move(index)) {}

uint64_t Text::bytes() const {
  return sizeof(*this) + log_.bytes() + phases_.bytes() + counts_->bytes() +
         uncounted_.capacity() * sizeof(CountChange) + (index_ ? index_->bytes() : 0) +
         (merged_ ? merged_->capacity() * sizeof(LogitEdit) : 0);
}

void Text::CountWithinPhase() {
  SettledCounts();
  if (phase() == counted_phase_) return;
  const PhaseOptions& options = spec_->Within(phase());
  if (!options.SameEdits(counted())) {
    counts_ = std::make_shared<PenaltyCounts>(spec_->history.scope, options, *counts_);
    lent_ = shared_ = false;
  }
  counted_phase_ = phase();
}

uint64_t Text::LendCost(uint64_t changes) const {
  const bool copies = (shared_ && !uncounted_.empty()) || phase() != counted_phase_ || changes > 0;
  return price::kFoundEdit * changes + (copies ? price::kCopiedEdit * counts_->edits().size() : 0);
}

std::shared_ptr<const std::vector<LogitEdit>> Text::LendEdits(const StepChanges& changes) {
  CountWithinPhase();
  if (changes.empty()) {
    lent_ = true;
    return {counts_, &counts_->edits()};
  }
  if (merged_ == nullptr || merged_lent_) merged_ = std::make_shared<std::vector<LogitEdit>>();
  MergeChanges(spec_->history.scope, counted(), *counts_, changes, merged_.get());
  merged_lent_ = true;
  return merged_;
}

std::optional<kernels::NoiseKey> Text::marked_noise() const {
  const HistoryOptions& options = spec_->history;
  if (options.watermark_width == 0 || (index_ && index_->RepeatsMarkedContext(log_))) return std::nullopt;
  uint32_t context[law::kMaxWatermarkWidth];
  const uint32_t width = std::min(options.watermark_width, position());
  for (uint32_t i = 0; i < width; ++i) context[i] = log_.at(position() - width + i);
  return law::WatermarkNoise(options.watermark_key, {context, width});
}

void Text::LeaveLoan() {
  shared_ |= lent_;
  lent_ = false;
  if (std::exchange(merged_lent_, false)) merged_ = nullptr;
}

const PenaltyCounts& Text::SettledCounts() {
  if (uncounted_.empty()) return *counts_;
  if (lent_ || shared_) {
    counts_ = std::make_shared<PenaltyCounts>(*counts_);
    lent_ = shared_ = false;
  }
  counts_->Apply(spec_->history.scope, counted(), &uncounted_);
  return *counts_;
}

void Text::Commit(RowResult* result) {
  SORTITION_CHECK(!result->outputs.empty());
  EndLoan();
  for (const kernels::RowOutput& output : result->outputs) {
    SORTITION_CHECK(output.error == kernels::RowFault::kNone);
    Append(output.token);
  }
  result->history_hash = history_hash();
  result->end = text_end();
}

void Text::Append(uint32_t token) {
  Push(token);
  if (IsLong(uncounted_, *counts_)) SettledCounts();
  Trim(lookback_, kept_history_, &log_, &phases_);
}

void Text::Count(uint32_t position, int32_t change) {
  if (!InScope(*spec_, prompt_length_, position)) return;
  const CountChange counted = ChangeOf(prompt_length_, position, log_.at(position), change);
  if (!uncounted_.empty() && counted.Reverts(uncounted_.back())) return uncounted_.pop_back();
  uncounted_.push_back(counted);
}

void Text::Push(uint32_t token) {
  log_.Push(token);
  if (index_) index_->Pushed(log_);
  Pushed();
}

void Text::PushAhead(uint32_t token) {
  log_.Push(token);
  if (index_) index_->PushedAhead(log_);
  Pushed();
}

void Text::Pushed() {
  const std::vector<Phase>& phases = spec_->history.phases;
  if (!phases.empty()) phases_.Pushed(phases, log_, position(), prompt_length_);
  if (!penalises_) return;
  const uint32_t window = spec_->history.scope.window;
  const uint32_t length = position();
  Count(length - 1, +1);
  if (window != 0 && length > window) Count(length - 1 - window, -1);
}

Text::Undo Text::Rewrite(std::optional<uint32_t> truncate_to, std::span<const uint32_t> append) {
  Undo undo;
  undo.prompt_length = prompt_length_;
  if (truncate_to && *truncate_to < position()) {
    for (uint32_t at = *truncate_to; at < position(); ++at) undo.removed.push_back(log_.at(at));
    Truncate(*truncate_to);
  }
  for (uint32_t token : append) Push(token);
  undo.appended = static_cast<uint32_t>(append.size());
  return undo;
}

void Text::Revert(const Undo& undo) {
  Truncate(position() - undo.appended);
  prompt_length_ = undo.prompt_length;
  phases_.Cut(spec_->history.phases, position(), prompt_length_);
  for (uint32_t token : undo.removed) Push(token);
}

void Text::Uncount(uint32_t to) {
  if (!penalises_) return;
  const uint32_t window = spec_->history.scope.window;
  for (uint32_t length = position(); length > to; --length) {
    if (window != 0 && length > window) Count(length - 1 - window, +1);
    Count(length - 1, -1);
  }
}

void Text::CutLog(uint32_t to) {
  log_.Truncate(to);
  prompt_length_ = std::min(prompt_length_, to);
  phases_.Cut(spec_->history.phases, position(), prompt_length_);
}

void Text::Truncate(uint32_t to) {
  SORTITION_CHECK(to >= lowest_truncation() && to <= position());
  for (uint32_t length = position(); index_ && length > to; --length) index_->Popping(log_, length);
  Uncount(to);
  CutLog(to);
}

Text::Reread Text::FindReread(const SequenceSpec& spec) const {
  return {.counts = spec.penalises() && !SameCounts(spec, *spec_),
          .phases = !spec.history.phases.empty() && !SamePhases(spec, *spec_),
          .index = HistoryIndex::Needed(spec.history) && !HistoryIndex::Same(spec.history, spec_->history)};
}

bool Text::SharesCounts(const SequenceSpec& spec) const {
  return spec.history.scope == spec_->history.scope && spec.Within(CountedPhase(spec)).SameEdits(counted());
}

uint64_t Text::ForkCost(const SequenceSpec& spec, uint32_t position) const {
  const Reread reread = FindReread(spec);
  const bool counts_anew = reread.counts || CountsFewer(position);
  const uint64_t times =
      reread.any() || counts_anew ? RewriteTimes(reread.index, reread.phases ? spec.history.phases.size() : 0) : 0;
  uint64_t cost = price::kSharedChunk * log_.chunks() + price::kRewrittenToken * times * position;
  if (counts_anew) return cost;
  cost += price::kFoundEdit * (this->position() - position);
  const uint64_t edits = counts_->edits().size();
  if (shared_ && !uncounted_.empty()) cost += price::kCopiedEdit * edits;
  return cost + (SharesCounts(spec) ? 0 : price::kFoundEdit * edits);
}

std::unique_ptr<Text> Text::Fork(std::shared_ptr<const SequenceSpec> spec, uint32_t position) {
  const bool has_all = log_.kept_from() == 0;
  const bool same_counts = SameCounts(*spec, *spec_);
  const bool same_phases = SamePhases(*spec, *spec_);
  const bool counts_known = has_all || same_counts || !CountsWholeHistory(*spec);
  const bool phases_known = has_all || same_phases || spec->history.phases.empty();
  if (position < LowestTruncation(spec->history.lookback(), log_) || !counts_known || !phases_known) return nullptr;

  // Counts those tokens, left or cut off, that are fewer.
  const bool counts_anew = !same_counts || CountsFewer(position);
  const uint32_t prompt_length = std::min(prompt_length_, position);
  TokenLog log;  // what is read anew
  if (counts_anew || FindReread(*spec).any()) {
    log = log_;
    log.Truncate(position);
  }
  std::unique_ptr<HistoryIndex> index;
  if (!HistoryIndex::Same(spec->history, spec_->history)) {
    index = MakeIndex(*spec, log);
  } else if (index_) {
    index = index_->Fork(log_, position);
  }
  PhaseTrack phases = same_phases                    ? phases_
                      : spec->history.phases.empty() ? PhaseTrack()
                                                     : PhaseTrack::Of(spec->history.phases, log, prompt_length);

  const PenaltyScope& scope = spec->history.scope;
  const uint32_t phase = CountedPhase(*spec);
  const PhaseOptions& options = spec->Within(phase);
  const bool shares = !counts_anew && SharesCounts(*spec);
  std::shared_ptr<PenaltyCounts> counts;
  if (counts_anew) {
    counts = std::make_shared<PenaltyCounts>(scope, options, CountScope(*spec, prompt_length, log));
  } else {
    SettledCounts();
    counts = shares ? counts_ : std::make_shared<PenaltyCounts>(scope, options, *counts_);
    shared_ |= shares;
  }
  std::unique_ptr<Text> child(new Text(std::move(spec), log_, prompt_length_, kept_history_, std::move(counts),
                                       std::move(phases), std::move(index)));
  child->counted_phase_ = phase;
  child->shared_ = shares;
  if (!counts_anew) child->Uncount(position);
  child->CutLog(position);
  return child;
}

std::vector<uint32_t> Text::Tokens() const {
  std::vector<uint32_t> tokens;
  tokens.reserve(log_.length() - log_.kept_from());
  for (uint32_t position = log_.kept_from(); position < log_.length(); ++position) tokens.push_back(log_.at(position));
  return tokens;
}

}  // namespace sortition::service

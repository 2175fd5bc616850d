// Turns counts into edits.
#include "service/text/history/penalty_counts.h"

#include <algorithm>
#include <span>

#include "kernels/law/parameters.h"
#include "service/text/history/token_sort.h"

namespace sortition::service {
namespace {

using kernels::LogitEdit;

bool Listed(const LogitEdit& edit) { return edit.bias != 0 || (edit.flags & LogitEdit::kBanned) != 0; }

}  // namespace

void TokenCounter::Count(const CountChange& change) {
  const size_t page = change.token / kPageTokens;
  if (page >= pages_.size()) pages_.resize(page + 1);
  if (pages_[page] == nullptr) {
    pages_[page] = std::make_unique<Page>();
    ++used_pages_;
  }
  TokenOccurrences& count = (*pages_[page])[change.token % kPageTokens];
  const bool occurred = count.all() != 0;
  count.in_prompt += static_cast<uint32_t>(change.in_prompt);
  count.in_output += static_cast<uint32_t>(change.in_output);
  size_ = size_ + (count.all() != 0 ? 1 : 0) - (occurred ? 1 : 0);
}

uint64_t TokenCounter::bytes() const {
  return sizeof(*this) + pages_.capacity() * sizeof(pages_[0]) + used_pages_ * sizeof(Page);
}

LogitEdit MakeEdit(const PenaltyScope& scope, const PhaseOptions& options, const LogitEdit& listed,
                   TokenOccurrences count, double dry) {
  const uint32_t repeated = count.in_output + (scope.repetition_counts_prompt ? count.in_prompt : 0);
  const uint32_t frequent = count.in_output + (scope.frequency_counts_prompt ? count.in_prompt : 0);
  LogitEdit edit = listed;
  edit.flags = listed.flags & LogitEdit::kBanned;
  if (options.repetition_penalty != 1 && repeated > 0) edit.flags |= LogitEdit::kRepeated;
  edit.penalty = law::PenaltyBits(options.frequency_penalty, options.presence_penalty, frequent, dry);
  return edit;
}

void SumChanges(std::vector<CountChange>* changes) {
  if (changes->size() < 2) return;
  SortByToken(std::span(*changes));
  size_t kept = 0;
  for (const CountChange& change : *changes) {
    if (kept > 0 && (*changes)[kept - 1].token == change.token) {
      (*changes)[kept - 1].in_prompt += change.in_prompt;
      (*changes)[kept - 1].in_output += change.in_output;
    } else {
      (*changes)[kept++] = change;
    }
  }
  changes->resize(kept);
}

PenaltyCounts::PenaltyCounts(const PhaseOptions& options, size_t counted) {
  edits_.reserve(options.listed_edits.size() + counted);
  counts_.reserve(edits_.capacity());
}

void PenaltyCounts::Apply(const PenaltyScope& scope, const PhaseOptions& options, std::vector<CountChange>* changes) {
  SumChanges(changes);
  const bool one_by_one = changes->size() <= 4;  // tokens come and go
  std::vector<LogitEdit> new_edits;
  std::vector<TokenOccurrences> new_counts;
  bool erases = false;
  auto at = edits_.begin();
  for (const CountChange& change : *changes) {
    at = std::ranges::lower_bound(at, edits_.end(), change.token, {}, &LogitEdit::token);
    const ptrdiff_t index = at - edits_.begin();
    const bool known = at != edits_.end() && at->token == change.token;
    TokenOccurrences count = known ? counts_[index] : TokenOccurrences{};
    count.in_prompt += static_cast<uint32_t>(change.in_prompt);
    count.in_output += static_cast<uint32_t>(change.in_output);
    const LogitEdit edit = MakeEdit(scope, options, known ? *at : LogitEdit{.token = change.token}, count);
    const bool counts = count.all() != 0 || Listed(edit);
    if (known && (counts || !one_by_one)) {
      *at = edit;
      counts_[index] = count;
      erases |= !counts;
    } else if (known) {
      at = edits_.erase(at);
      counts_.erase(counts_.begin() + index);
    } else if (counts && one_by_one) {
      at = edits_.insert(at, edit);
      counts_.insert(counts_.begin() + index, count);
    } else if (counts) {
      new_edits.push_back(edit);
      new_counts.push_back(count);
    }
  }
  changes->clear();
  if (erases) Erase();
  if (!new_edits.empty()) Insert(new_edits, new_counts);
}

// Takes out the tokens that are neither counted nor listed.
void PenaltyCounts::Erase() {
  size_t kept = 0;
  for (size_t i = 0; i < edits_.size(); ++i) {
    if (counts_[i].all() == 0 && !Listed(edits_[i])) continue;
    edits_[kept] = edits_[i];
    counts_[kept++] = counts_[i];
  }
  edits_.resize(kept);
  counts_.resize(kept);
}

// Moves each edit once, from the last on.
void PenaltyCounts::Insert(const std::vector<LogitEdit>& edits, const std::vector<TokenOccurrences>& counts) {
  auto end = static_cast<ptrdiff_t>(edits_.size());
  edits_.resize(edits_.size() + edits.size());
  counts_.resize(edits_.size());
  for (auto next = static_cast<ptrdiff_t>(edits.size()); next-- > 0;) {
    const auto first = edits_.begin();
    const uint32_t token = edits[static_cast<size_t>(next)].token;
    const ptrdiff_t place = std::ranges::lower_bound(first, first + end, token, {}, &LogitEdit::token) - first;
    std::move_backward(first + place, first + end, first + end + next + 1);
    std::move_backward(counts_.begin() + place, counts_.begin() + end, counts_.begin() + end + next + 1);
    edits_[static_cast<size_t>(place + next)] = edits[static_cast<size_t>(next)];
    counts_[static_cast<size_t>(place + next)] = counts[static_cast<size_t>(next)];
    end = place;
  }
}

TokenOccurrences PenaltyCounts::count(uint32_t token) const {
  const auto at = std::ranges::lower_bound(edits_, token, {}, &LogitEdit::token);
  return at != edits_.end() && at->token == token ? counts_[static_cast<size_t>(at - edits_.begin())]
                                                  : TokenOccurrences{};
}

uint64_t PenaltyCounts::bytes() const {
  return sizeof(*this) + edits_.capacity() * sizeof(LogitEdit) + counts_.capacity() * sizeof(TokenOccurrences);
}

}  // namespace sortition::service

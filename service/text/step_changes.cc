// Bans and DRY terms, and how they enter the edits.
#include "service/text/step_changes.h"

#include <algorithm>
#include <span>

#include "service/text/history/token_sort.h"

namespace sortition::service {
namespace {

using kernels::LogitEdit;

void BanBadWords(const HistoryOptions& options, const TokenLog& log, uint32_t prompt_length, StepChanges* changes) {
  const uint32_t from = options.bad_words_in_prompt ? 0 : prompt_length;
  if (options.bad_words.empty() || log.length() == from) return;
  const auto last_but_one = [](const TokenString& word) { return word[word.size() - 2]; };
  const uint32_t last = log.at(log.length() - 1);
  auto word = std::ranges::lower_bound(options.bad_words, last, {}, last_but_one);
  for (; word != options.bad_words.end() && last_but_one(*word) == last; ++word) {
    const auto prefix = std::span(*word).first(word->size() - 1);
    const bool completes = prefix.size() <= log.length() - from && log.EndsIn(prefix, log.length());
    if (completes) changes->push_back({.token = word->back(), .banned = true});
  }
}

// Merges bans of the tokens, which are sorted as the changes are.
void BanStopTokens(const TokenString& tokens, StepChanges* changes) {
  const auto sorted = static_cast<ptrdiff_t>(changes->size());
  changes->reserve(changes->size() + tokens.size());
  for (const uint32_t token : tokens) changes->push_back({.token = token, .banned = true});
  std::ranges::inplace_merge(*changes, changes->begin() + sorted, {}, &StepChange::token);
}

}  // namespace

StepChanges ChangesOfStep(const HistoryOptions& options, const TokenLog& log, uint32_t prompt_length,
                          const HistoryIndex* index) {
  StepChanges changes;
  if (index != nullptr) {
    for (const DryTerm& term : index->DryTerms(log, options)) {
      changes.push_back({.token = term.token, .dry = term.term});
    }
    const ContextIndex::AllFound repeated = index->RepeatedNgrams(log);
    changes.reserve(changes.size() + repeated.size());
    for (const ContextIndex::Found& one : repeated) changes.push_back({.token = one.token, .banned = true});
  }
  BanBadWords(options, log, prompt_length, &changes);
  if (changes.size() > 1) SortByToken(std::span(changes));
  if (log.length() - prompt_length < options.min_tokens) BanStopTokens(options.stop_tokens, &changes);
  size_t kept = 0;
  for (const StepChange& change : changes) {
    if (kept > 0 && changes[kept - 1].token == change.token) {
      changes[kept - 1].banned |= change.banned;
      changes[kept - 1].dry += change.dry;  // only one of them is not 0
    } else {
      changes[kept++] = change;
    }
  }
  changes.resize(kept);
  return changes;
}

void MergeChanges(const PenaltyScope& scope, const PhaseOptions& options, const PenaltyCounts& counts,
                  const StepChanges& changes, std::vector<LogitEdit>* edits) {
  edits->clear();
  // Without copies of the list as it grows.
  const size_t most = counts.edits().size() + changes.size();
  if (edits->capacity() < most) edits->reserve(most + most / 8);
  auto base = counts.edits().begin();
  auto count = counts.counts().begin();
  for (const StepChange& change : changes) {
    for (; base != counts.edits().end() && base->token < change.token; ++base, ++count) edits->push_back(*base);
    const bool known = base != counts.edits().end() && base->token == change.token;
    LogitEdit& edit = edits->emplace_back(known ? *base : LogitEdit{.token = change.token});
    if (change.dry != 0) edit = MakeEdit(scope, options, edit, known ? *count : TokenOccurrences{}, change.dry);
    if (change.banned) edit.flags |= LogitEdit::kBanned;
    if (known) ++base, ++count;
  }
  edits->insert(edits->end(), base, counts.edits().end());
}

}  // namespace sortition::service

// Steps forward and back in the state's own history, so that all options that it applies hold after drafts too.
#include "service/text/look_ahead.h"

#include <algorithm>
#include <utility>

#include "kernels/check.h"

namespace sortition::service {
namespace {

using kernels::LogitEdit;

// A walk over the tree.
class Walk {
 public:
  Walk(Text* state, const TokenTree& tree) : state_(*state), tree_(tree) {}
  ~Walk() { BackTo(0); }

  // Moves to the position after token `index`.
  void GoTo(int32_t index) {
    std::vector<int32_t> way;
    for (int32_t at = index; at >= 0; at = tree_.parents[static_cast<size_t>(at)]) way.push_back(at);
    std::ranges::reverse(way);
    const auto [here, there] = std::ranges::mismatch(way_, way);
    BackTo(static_cast<size_t>(here - way_.begin()));
    for (auto next = there; next != way.end(); ++next) state_.PushAhead(tree_.tokens[static_cast<size_t>(*next)]);
    way_ = std::move(way);
  }

 private:
  void BackTo(size_t length) {
    for (; way_.size() > length; way_.pop_back()) state_.PopAhead();
  }

  Text& state_;
  const TokenTree& tree_;
  std::vector<int32_t> way_;
};

// Finds the edits at positions ahead by what they change in those of the first position.
class EditsAhead {
 public:
  // The state is at the first position, has counted all of its tokens, and has lent its edits.
  EditsAhead(Text* state, PositionEdits lent, StepChanges changes)
      : state_(*state), counts_(state->counts()), first_(std::move(changes)), lists_(1 + phases().size()) {
    lists_[state->phase()] = std::move(lent);
    first_phase_ = state->phase();
  }

  // Returns the edits at the state's position. Adds the work that it takes to `cost`.
  PositionEdits Find(uint64_t* cost) {
    const StepChanges changes = state_.ChangesNow();
    std::vector<CountChange> counted = state_.uncounted();
    SumChanges(&counted);
    const PositionEdits& list = ListWithin(state_.phase(), cost);
    PositionEdits edits = list.With(Changed(changes, counted));
    *cost += price::kFoundEdit * changes.size() + price::kCopiedEdit * edits.changed();
    return edits;
  }

 private:
  const std::vector<Phase>& phases() const { return state_.spec().history.phases; }

  // Returns the edits of the first position under the options of a phase.
  const PositionEdits& ListWithin(uint32_t phase, uint64_t* cost) {
    std::optional<PositionEdits>& list = lists_[phase];
    if (list) return *list;
    const SequenceSpec& spec = state_.spec();
    const PenaltyScope& scope = spec.history.scope;
    const PhaseOptions& options = spec.Within(phase);
    if (options.SameEdits(spec.Within(first_phase_))) {
      list = lists_[first_phase_];
      return *list;
    }
    const auto counts = std::make_shared<PenaltyCounts>(scope, options, counts_);
    *cost += price::kFoundEdit * counts->edits().size();
    std::shared_ptr<const PositionEdits::List> all(counts, &counts->edits());
    if (!first_.empty()) {
      auto merged = std::make_shared<PositionEdits::List>();
      MergeChanges(scope, options, *counts, first_, merged.get());
      all = std::move(merged);
    }
    list.emplace(std::move(all)).Share();
    return *list;
  }

  // Returns the edits of the tokens that the changes of the step and the counts have not in common with the first
  // position.
  std::vector<LogitEdit> Changed(const StepChanges& changes, const std::vector<CountChange>& counted) const {
    const SequenceSpec& spec = state_.spec();
    const PhaseOptions& options = spec.Within(state_.phase());
    std::vector<uint32_t> tokens;
    AddDifferent(changes, &tokens);
    for (const CountChange& one : counted) {
      if (one.in_prompt != 0 || one.in_output != 0) tokens.push_back(one.token);
    }
    std::ranges::sort(tokens);
    const auto repeated = std::ranges::unique(tokens);
    tokens.erase(repeated.begin(), repeated.end());
    std::vector<LogitEdit> edits;
    for (const uint32_t token : tokens) {
      const CountChange more = Of(counted, token, &CountChange::token);
      const StepChange change = Of(changes, token, &StepChange::token);
      TokenOccurrences count = counts_.count(token);
      count.in_prompt += static_cast<uint32_t>(more.in_prompt);
      count.in_output += static_cast<uint32_t>(more.in_output);
      const LogitEdit listed = Of(options.listed_edits, token, &LogitEdit::token);
      edits.push_back(MakeEdit(spec.history.scope, options, listed, count, change.dry));
      if (change.banned) edits.back().flags |= LogitEdit::kBanned;
    }
    return edits;
  }

  // Returns the element of a token in a sorted list; one that changes nothing if there is none.
  template <typename List, typename Element = List::value_type>
  static Element Of(const List& list, uint32_t token, uint32_t Element::*token_of) {
    const auto element = std::ranges::lower_bound(list, token, {}, token_of);
    if (element != list.end() && (*element).*token_of == token) return *element;
    Element none;
    none.token = token;
    return none;
  }

  void AddDifferent(const StepChanges& changes, std::vector<uint32_t>* tokens) const {
    auto before = first_.begin();
    for (const StepChange& change : changes) {
      for (; before != first_.end() && before->token < change.token; ++before) tokens->push_back(before->token);
      const bool is_same = before != first_.end() && *before == change;
      if (before != first_.end() && before->token == change.token) ++before;
      if (!is_same) tokens->push_back(change.token);
    }
    for (; before != first_.end(); ++before) tokens->push_back(before->token);
  }

  Text& state_;
  const PenaltyCounts& counts_;  // of the first position
  const StepChanges first_;
  uint32_t first_phase_ = kNoPhase;
  std::vector<std::optional<PositionEdits>> lists_;  // by phase
};

// Returns the price of what is sought at the end of each position's text.
uint64_t SearchCost(const HistoryOptions& options) {
  uint64_t cost = 0;
  for (const auto* strings : {&options.bad_words, &options.banned_phrases}) {
    for (const TokenString& string : *strings) cost += price::kSoughtString + string.size() / 16 * price::kSoughtTokens;
  }
  return cost;
}

// Returns the edits that the list of a position has for itself.
uint64_t EditsOf(const PositionEdits& edits, EditsUse use) {
  const bool has_own = use == EditsUse::kChanged || (use == EditsUse::kTogether && edits.changes());
  return has_own ? edits.size() : 0;
}

}  // namespace

TokenTree TokenTree::Chain(std::vector<uint32_t> tokens) {
  TokenTree tree;
  tree.tokens = std::move(tokens);
  for (size_t i = 0; i < tree.tokens.size(); ++i) tree.parents.push_back(static_cast<int32_t>(i) - 1);
  return tree;
}

uint64_t BytesAhead(const PositionViews& views, EditsUse use) {
  uint64_t edits = use == EditsUse::kChanged ? views[0].edits.size() : 0;
  if (views[0].made_edits) edits += views[0].edits.size();
  absl::InlinedVector<const PositionEdits*, 2> lists = {&views[0].edits};
  for (size_t i = 1; i < views.size(); ++i) {
    const PositionEdits& own = views[i].edits;
    edits += own.changed() + EditsOf(own, use);
    const auto shares = [&](const PositionEdits* list) { return list->SharesWith(own); };
    if (std::ranges::none_of(lists, shares)) lists.push_back(&own);
  }
  for (size_t i = use == EditsUse::kInTurn && views.size() > 1 ? 0 : 1; i < lists.size(); ++i)
    edits += lists[i]->size();
  return (views.size() - 1) * sizeof(PositionView) + edits * sizeof(LogitEdit);
}

PositionViews LookAhead(Text* state, const TokenTree& tree, EditsUse use, Bill* bill) {
  SORTITION_CHECK(tree.tokens.size() == tree.parents.size());
  PositionViews views;
  const auto take = [&](uint64_t work) { return bill == nullptr || bill->Take(work); };
  const auto rest = [](uint64_t cost, uint64_t taken) { return cost - std::min(cost, taken); };
  const uint64_t search = SearchCost(state->spec().history);
  // N-grams are paid before they are looked for: each token once as it is found, and once as an edit.
  const auto ngrams = [&] { return price::kFoundEdit * state->LooksForNgrams(); };
  const uint64_t known = state->LendCost(state->LooksForNgrams());
  if (!take(search + known + ngrams())) return views;
  StepChanges changes = state->ChangesNow();
  if (!take(rest(state->LendCost(changes.size()), known))) return views;
  views.emplace_back(*state, PositionEdits(state->LendEdits(changes))).made_edits = !changes.empty();
  if (use == EditsUse::kChanged && !take(price::kCopiedEdit * views[0].edits.size())) return {};
  if (tree.tokens.empty()) return views;
  views[0].edits.Share();
  EditsAhead ahead(state, views[0].edits, std::move(changes));
  if (use == EditsUse::kInTurn && !take(price::kCopiedEdit * views[0].edits.size())) return views;
  Walk walk(state, tree);
  for (int32_t index = 0; index < static_cast<int32_t>(tree.tokens.size()); ++index) {
    walk.GoTo(index);
    const uint64_t looks = ngrams();
    if (!take(price::kPosition + search + 2 * looks)) break;
    uint64_t cost = 0;
    PositionEdits edits = ahead.Find(&cost);
    if (!take(rest(cost, looks) + price::kCopiedEdit * EditsOf(edits, use))) break;
    views.emplace_back(*state, std::move(edits)).ends_result = state->text_end().is_last();
  }
  return views;
}

}  // namespace sortition::service

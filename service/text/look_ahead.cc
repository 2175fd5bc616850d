// Steps forward and back by the state's own rewrites, so that all options that it applies hold after drafts too.
#include "service/text/look_ahead.h"

#include <algorithm>
#include <utility>

#include "kernels/check.h"

namespace sortition::service {
namespace {

using Edits = std::shared_ptr<const std::vector<kernels::LogitEdit>>;

PositionView ViewOf(SequenceState* state, Edits edits) {
  return {std::move(edits), state->marked_noise(), state->forced_token(), state->phase()};
}

// A walk over the tree.
class Walk {
 public:
  Walk(SequenceState* state, const TokenTree& tree) : state_(*state), tree_(tree) {}
  ~Walk() { BackTo(0); }

  // Moves to the position after token `index`.
  void GoTo(int32_t index) {
    std::vector<int32_t> way;
    for (int32_t at = index; at >= 0; at = tree_.parents[static_cast<size_t>(at)]) way.push_back(at);
    std::ranges::reverse(way);
    const auto [here, there] = std::ranges::mismatch(way_, way);
    BackTo(static_cast<size_t>(here - way_.begin()));
    for (auto next = there; next != way.end(); ++next) {
      rewrites_.push_back(state_.Rewrite(std::nullopt, {&tree_.tokens[static_cast<size_t>(*next)], 1}));
    }
    way_ = std::move(way);
  }

 private:
  void BackTo(size_t length) {
    for (; rewrites_.size() > length; rewrites_.pop_back()) state_.Revert(rewrites_.back());
  }

  SequenceState& state_;
  const TokenTree& tree_;
  std::vector<int32_t> way_;
  std::vector<SequenceState::Undo> rewrites_;  // one for each token of the path
};

}  // namespace

TokenTree TokenTree::Chain(std::vector<uint32_t> tokens) {
  TokenTree tree;
  tree.tokens = std::move(tokens);
  for (size_t i = 0; i < tree.tokens.size(); ++i) tree.parents.push_back(static_cast<int32_t>(i) - 1);
  return tree;
}

uint64_t BytesAhead(const PositionViews& views) {
  uint64_t bytes = 0;
  for (size_t i = 1; i < views.size(); ++i) {
    bytes += sizeof(PositionView);
    if (views[i].edits != views[i - 1].edits) bytes += views[i].edits->capacity() * sizeof(kernels::LogitEdit);
  }
  return bytes;
}

PositionViews LookAhead(SequenceState* state, const TokenTree& tree) {
  SORTITION_CHECK(tree.tokens.size() == tree.parents.size());
  PositionViews views;
  views.push_back(ViewOf(state, state->LendEdits()));
  if (tree.tokens.empty()) return views;
  state->LeaveLoan();
  {
    Walk walk(state, tree);
    for (int32_t index = 0; index < static_cast<int32_t>(tree.tokens.size()); ++index) {
      walk.GoTo(index);
      Edits edits = state->CopyEdits(*views.back().edits);
      views.push_back(ViewOf(state, edits != nullptr ? std::move(edits) : views.back().edits));
      views.back().ends_result = state->text_end().is_last();
    }
  }
  return views;
}

}  // namespace sortition::service

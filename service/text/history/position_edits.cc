// One list for many positions, changed from one to the next.
#include "service/text/history/position_edits.h"

#include <algorithm>
#include <utility>

#include "kernels/check.h"

namespace sortition::service {
namespace {

using kernels::LogitEdit;
using EditList = PositionEdits::List;

// Returns the edit of a token; one without effect if there is none.
LogitEdit EditIn(const EditList& edits, uint32_t token) {
  const auto edit = std::ranges::lower_bound(edits, token, {}, &LogitEdit::token);
  return edit != edits.end() && edit->token == token ? *edit : LogitEdit{.token = token};
}

// Returns both lists; an edit of `over` stands for that of its token in `under`.
EditList Merged(const EditList& under, const EditList& over) {
  EditList merged;
  merged.reserve(under.size() + over.size());
  auto next = under.begin();
  for (const LogitEdit& edit : over) {
    const auto from = next;
    next = std::ranges::lower_bound(next, under.end(), edit.token, {}, &LogitEdit::token);
    merged.insert(merged.end(), from, next);
    if (next != under.end() && next->token == edit.token) ++next;
    merged.push_back(edit);
  }
  merged.insert(merged.end(), next, under.end());
  return merged;
}

}  // namespace

PositionEdits PositionEdits::With(List changed) const {
  PositionEdits edits = *this;
  edits.kept_ = nullptr;
  if (edits.shared_ == nullptr) edits.Share();
  for (const LogitEdit& edit : changed) edits.shared_->tokens.push_back(edit.token);
  if (!changed.empty()) edits.shared_->list.clear();
  edits.changed_ = std::move(changed);
  return edits;
}

PositionEdits PositionEdits::WithBans(std::span<const uint32_t> banned) const {
  List bans;
  for (const uint32_t token : banned) {
    const auto changed = std::ranges::lower_bound(changed_, token, {}, &LogitEdit::token);
    const bool is_changed = changed != changed_.end() && changed->token == token;
    bans.push_back(is_changed ? *changed : EditIn(*all_, token));
    bans.back().flags |= LogitEdit::kBanned;
  }
  return With(Merged(changed_, bans));
}

const EditList& PositionEdits::operator*() const {
  if (kept_ != nullptr) return *kept_;
  if (changed_.empty()) return *all_;
  if (shared_->list.empty()) shared_->Lay(*all_);
  shared_->Set(changed_);
  return shared_->list;
}

// Makes the list, with a place for each token that a position changes.
void PositionEdits::Shared::Lay(const List& all) {
  std::ranges::sort(tokens);
  const auto repeated = std::ranges::unique(tokens);
  tokens.erase(repeated.begin(), repeated.end());
  places.clear();
  set.clear();
  List changeable;
  for (const uint32_t token : tokens) changeable.push_back(EditIn(all, token));
  list = Merged(all, changeable);
  auto at = list.begin();
  for (const LogitEdit& edit : changeable) {
    at = std::ranges::lower_bound(at, list.end(), edit.token, {}, &LogitEdit::token);
    places.push_back({edit, static_cast<size_t>(at - list.begin())});
  }
}

void PositionEdits::Shared::Set(const List& changed) {
  if (set == changed) return;
  const auto place = [&](const LogitEdit& edit) -> const Place& {
    const auto token = [](const Place& one) { return one.shared.token; };
    return *std::ranges::lower_bound(places, edit.token, {}, token);
  };
  for (const LogitEdit& edit : set) list[place(edit).index] = place(edit).shared;
  for (const LogitEdit& edit : changed) list[place(edit).index] = edit;
  set = changed;
}

void PositionEdits::Keep(const PositionEdits* before) {
  if (changed_.empty()) return;
  if (before != nullptr && before->kept_ != nullptr && SharesWith(*before) && before->changed_ == changed_) {
    kept_ = before->kept_;
  } else {
    kept_ = std::make_shared<const List>(Merged(*all_, changed_));
  }
}

}  // namespace sortition::service

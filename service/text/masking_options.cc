// Reads a sequence's lists, its history's bans, and the step's mask.
#include "service/text/masking_options.h"

#include <algorithm>
#include <span>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "kernels/row.h"

namespace sortition::service {
namespace {

using kernels::LogitEdit;

bool IsBan(const LogitEdit& edit) { return (edit.flags & LogitEdit::kBanned) != 0; }

bool Bans(std::span<const LogitEdit> edits, uint32_t token) {
  const auto edit = std::ranges::lower_bound(edits, token, {}, &LogitEdit::token);
  return edit != edits.end() && edit->token == token && IsBan(*edit);
}

// Adds the options that have banned tokens because of the history.
void AddOfHistory(const PhaseOptions& options, const HistoryOptions& history, std::span<const LogitEdit> edits,
                  std::vector<std::string>* names) {
  bool holds_back = false, has_others = false;
  for (const LogitEdit& edit : edits) {
    if (!IsBan(edit) || Bans(options.listed_edits, edit.token)) continue;
    const bool is_stop = history.min_tokens != 0 && std::ranges::binary_search(history.stop_tokens, edit.token);
    (is_stop ? holds_back : has_others) = true;
  }
  if (holds_back) names->emplace_back("min_tokens");
  if (has_others && history.no_repeat_ngram != 0) names->emplace_back("no_repeat_ngram_size");
  if (has_others && !history.bad_words.empty()) names->emplace_back("bad_words");
}

}  // namespace

std::string MaskingOptions(const RowPlan& plan, size_t mask, const SequenceSpec& spec, const PositionView* view) {
  const uint32_t phase = view != nullptr ? view->phase : kNoPhase;
  const PhaseOptions& options = spec.Within(phase);
  std::vector<std::string> names;
  if (options.has_allowed_tokens) names.emplace_back("allowed_token_ids");
  // A bad word of one token is a ban.
  if (std::ranges::any_of(options.listed_edits, IsBan)) names.emplace_back("banned_token_ids or bad_words");
  if (!names.empty() && phase != kNoPhase) names.back() += absl::StrCat(" in phase ", phase);
  if (view != nullptr) AddOfHistory(options, spec.history, *view->edits, &names);
  if (mask < plan.masks.size()) {
    const PositionMask& asked = plan.masks[mask];
    if (asked.mask_row) names.emplace_back("mask.mask_row");
    if (asked.uploaded_mask_id) names.emplace_back("mask.uploaded_mask_id");
    if (asked.has_allowed_tokens) names.emplace_back("mask.allowed_tokens");
    if (!asked.banned_tokens.empty()) names.emplace_back("mask.banned_tokens");
  }
  return names.empty() ? "" : absl::StrCat(": ", absl::StrJoin(names, ", "));
}

}  // namespace sortition::service

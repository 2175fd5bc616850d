// Turns counts into edits.
#include "service/text/penalty_counts.h"

#include <algorithm>

#include "kernels/law/parameters.h"

namespace sortition::service {
namespace {

using kernels::LogitEdit;

bool Listed(const LogitEdit& edit) { return edit.bias != 0 || (edit.flags & LogitEdit::kBanned) != 0; }

}  // namespace

LogitEdit EditOf(const PenaltyScope& scope, const RowOptions& options, const LogitEdit& listed, TokenCount count,
                 double dry) {
  const uint32_t repeated = count.in_output + (scope.repetition_counts_prompt ? count.in_prompt : 0);
  const uint32_t frequent = count.in_output + (scope.frequency_counts_prompt ? count.in_prompt : 0);
  LogitEdit edit = listed;
  edit.flags = listed.flags & LogitEdit::kBanned;
  if (options.repetition_penalty != 1 && repeated > 0) edit.flags |= LogitEdit::kRepeated;
  edit.penalty = law::PenaltyBits(options.frequency_penalty, options.presence_penalty, frequent, dry);
  return edit;
}

PenaltyCounts::PenaltyCounts(const PenaltyScope& scope, const RowOptions& options, const Counts& counts) {
  std::vector<LogitEdit> listed = options.listed_edits;
  for (const auto& [token, count] : counts) {
    if (!std::ranges::binary_search(options.listed_edits, token, {}, &LogitEdit::token)) {
      listed.push_back(LogitEdit{.token = token});
    }
  }
  std::ranges::sort(listed, {}, &LogitEdit::token);
  edits_.reserve(listed.size());
  counts_.reserve(listed.size());
  for (const LogitEdit& edit : listed) {
    const auto it = counts.find(edit.token);
    const TokenCount count = it == counts.end() ? TokenCount{} : it->second;
    edits_.push_back(EditOf(scope, options, edit, count));
    counts_.push_back(count);
  }
}

PenaltyCounts::PenaltyCounts(const PenaltyScope& scope, const RowOptions& options, const PenaltyCounts& other) {
  auto listed = options.listed_edits.begin();
  const auto push = [&](const LogitEdit& edit, TokenCount count) {
    edits_.push_back(EditOf(scope, options, edit, count));
    counts_.push_back(count);
  };
  for (size_t i = 0; i < other.counts_.size(); ++i) {
    const uint32_t token = other.edits_[i].token;
    if (other.counts_[i].all() == 0) continue;  // only listed
    for (; listed != options.listed_edits.end() && listed->token < token; ++listed) push(*listed, {});
    const bool is_listed = listed != options.listed_edits.end() && listed->token == token;
    push(is_listed ? *listed++ : LogitEdit{.token = token}, other.counts_[i]);
  }
  for (; listed != options.listed_edits.end(); ++listed) push(*listed, {});
}

void PenaltyCounts::Add(const PenaltyScope& scope, const RowOptions& options, uint32_t token, bool output,
                        int32_t change) {
  const auto at = std::ranges::lower_bound(edits_, token, {}, &LogitEdit::token);
  const ptrdiff_t index = at - edits_.begin();
  const bool known = at != edits_.end() && at->token == token;
  TokenCount count = known ? counts_[index] : TokenCount{};
  (output ? count.in_output : count.in_prompt) += change;
  const LogitEdit edit = EditOf(scope, options, known ? *at : LogitEdit{.token = token}, count);

  if (count.all() == 0 && !Listed(edit)) {
    edits_.erase(at);
    counts_.erase(counts_.begin() + index);
  } else if (known) {
    edits_[index] = edit;
    counts_[index] = count;
  } else {
    edits_.insert(at, edit);
    counts_.insert(counts_.begin() + index, count);
  }
}

uint64_t PenaltyCounts::bytes() const {
  return sizeof(*this) + edits_.capacity() * sizeof(LogitEdit) + counts_.capacity() * sizeof(TokenCount);
}

}  // namespace sortition::service

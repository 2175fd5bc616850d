// Edits, and the group maxima that follow from them.
#include "kernels/cpu/edit.h"

#include <algorithm>

#include "kernels/check.h"
#include "kernels/cpu/allowed_words.h"
#include "kernels/cpu/list_first.h"
#include "kernels/cpu/one_edit.h"
#include "kernels/cpu/read.h"
#include "kernels/cpu/select.h"
#include "kernels/law/row_law.h"

namespace sortition::kernels::cpu {
namespace {

constexpr uint32_t kAllGroups = ~0u;
constexpr uint32_t kFewMoved = 16;  // groups; reading more of them takes longer than keeping two bounds for each

// Returns how many of the highest groups need exact maxima.
uint32_t ExactGroups(const RowRequest& request) {
  const RowParameters& parameters = *request.parameters;
  if (parameters.greedy) return std::max(1u, parameters.tempered_top);
  if (!parameters.chain.empty()) return kAllGroups;
  const uint32_t first = std::max(1u, parameters.top_k);
  return std::max({first, parameters.processed_top, parameters.tempered_top});
}

// Lists a masked and edited row's tokens with a key >= `level`, which is above 1. Their groups' maxima become exact;
// the other groups' are below `level`. Returns the number of groups with listed tokens.
uint32_t ListFrom(const Kernels& kernels, uint32_t level, Scratch* scratch, uint32_t* maxima, RowView* row) {
  uint32_t* const groups = scratch->groups.Reserve(row->groups);
  const uint32_t count = kernels.SelectAtLeast(maxima, row->groups, level, groups);
  const auto edited = uint32_t(row->edited.size());
  Candidate* const tokens = scratch->listed.Reserve(size_t{count} * law::kGroupSize + edited);
  const uint32_t sent = kernels.CollectTokens(*row, groups, count, level, kNoCeiling, tokens);
  const uint32_t more = kernels.CopyBetween(row->edited.data(), edited, level, kNoCeiling, tokens + sent);
  row->listed = {tokens, sent + more};
  row->listed_floor = level;
  for (uint32_t i = 0; i < count; ++i) maxima[groups[i]] = level - 1;
  uint32_t reached = 0;
  uint32_t max_key = 0;
  for (const Candidate& token : row->listed) {
    uint32_t& max = maxima[token.token() / law::kGroupSize];
    reached += max < level;
    max = std::max(max, token.key());
    max_key = std::max(max_key, token.key());
  }
  row->max_key = max_key;
  return reached;
}

// Makes all of a masked row's maxima exact.
void ReadMasked(const Kernels& kernels, Scratch* scratch, uint32_t* maxima, RowView* row) {
  row->reached_from = 0;
  uint32_t* const groups = scratch->groups.Reserve(row->groups);
  uint32_t* const end = groups + kernels.SelectAtLeast(maxima, row->groups, 1, groups);
  const auto is_whole = [&](uint32_t group) { return row->sent_words[group] == ~uint64_t{0}; };
  const auto count = uint32_t(std::remove_if(groups, end, is_whole) - groups);
  uint32_t* const keys = scratch->folded.Reserve(count);
  kernels.LargestSentKeys(*row, groups, count, keys);
  for (uint32_t i = 0; i < count; ++i) maxima[groups[i]] = keys[i];
  row->max_key = maxima[kernels.FindMax(maxima, row->groups)];
}

// Turns the unmasked row's maxima into the masked row's. They are exact for the highest groups that the filters look
// at; lower groups may keep a masked token's maximum. Lists the tokens of the exact groups unless all groups are exact.
void MaskMaxima(const Kernels& kernels, const RowRequest& request, Scratch* scratch, uint32_t* maxima, RowView* row) {
  kernels.MaskWholeGroups(row->sent_words, row->maxima, row->groups, maxima);
  row->maxima = row->reached = maxima;
  const uint32_t exact = ExactGroups(request);
  // Looks at more groups, since a mask hides some.
  constexpr uint64_t kMore = 16;
  for (uint64_t leading = 2 * uint64_t{exact} + kMore; leading < row->groups; leading *= 4) {
    uint32_t* const folded = scratch->folded.Reserve(row->groups);
    const uint32_t level = kernels.LowerBoundOfNth(maxima, row->groups, uint32_t(leading), 1, folded);
    if (level == 1) break;
    row->reached_from = level;
    if (ListFrom(kernels, level, scratch, maxima, row) >= exact) return;
  }
  ReadMasked(kernels, scratch, maxima, row);
}

// True if no mask hides the edit's token.
bool IsAllowed(const RowView& masked, const LogitEdit& edit) {
  return masked.sent_words == nullptr || (masked.sent_words[edit.token / 64] >> (edit.token % 64) & 1) != 0;
}

// Returns the first token that its edit makes too large. Uses the law's own functions: this runs once, for a row that
// has failed.
uint32_t FindTooLarge(const RowRequest& request, const RowView& masked) {
  for (const LogitEdit& edit : request.edits) {
    if (!IsAllowed(masked, edit)) continue;
    const uint32_t sent = law::Canonical(SentBits(request, edit.token));
    if (law::IsTooLarge(ChangedBits(*request.parameters, edit, sent))) return edit.token;
  }
  CheckFailed("some edit makes its token too large", __FILE__, __LINE__);
}

// Moves the groups' maxima by the edits. If a group's largest token was edited, only bounds of the maximum are known
// afterwards: the group is not read again.
void MoveMaxima(const Edited& edited, uint32_t* maxima, uint32_t* reached) {
  for (uint32_t i = 0; i < edited.moved_count; ++i) {
    const uint32_t group = edited.moved_groups[i];
    const uint32_t key = edited.moved_keys[i];
    reached[group] = key;
    maxima[group] = std::max(maxima[group], key);
  }
}

uint32_t LargestEditedKey(const RowView& row, uint32_t group) {
  // Finds the first of the group without branches, for the processor would mispredict half of them.
  const Candidate* at = row.edited.data();
  for (size_t left = row.edited.size(); left != 0;) {
    const size_t half = (left + 1) / 2;
    at += at[half - 1].token() < group * law::kGroupSize ? half : 0;
    left -= half;
  }
  const Candidate* const end = row.edited.data() + row.edited.size();
  uint32_t largest = 0;
  for (; at != end && at->token() / law::kGroupSize == group; ++at) largest = std::max(largest, at->key());
  return largest;
}

// Reads the groups that may hold the largest key of the row, and returns this key.
uint32_t SettleFirst(const Kernels& kernels, const RowView& row, Scratch* scratch, uint32_t* maxima,
                     uint32_t* reached) {
  uint32_t max_key = reached[kernels.FindMax(reached, row.groups)];
  const uint32_t level = std::max(1u, max_key);
  uint32_t* const groups = scratch->groups.Reserve(row.groups);
  const uint32_t able = kernels.SelectAtLeast(maxima, row.groups, level, groups);
  uint32_t count = 0;
  for (uint32_t i = 0; i < able; ++i) {
    groups[count] = groups[i];
    count += reached[groups[i]] != maxima[groups[i]];
  }
  uint32_t* const largest = scratch->folded.Reserve(count);
  kernels.LargestSentKeys(row, groups, count, largest);
  for (uint32_t i = 0; i < count; ++i) {
    const uint32_t key = std::max(largest[i], LargestEditedKey(row, groups[i]));
    reached[groups[i]] = maxima[groups[i]] = key;
    max_key = std::max(max_key, key);
  }
  return max_key;
}

// Reads the few groups that edits have moved, and gives each its largest key. Returns the row's.
uint32_t SettleMoved(const Kernels& kernels, const RowView& raw, const RowView& row, const Edited& edited,
                     Scratch* scratch, uint32_t* maxima) {
  uint32_t* const largest = scratch->folded.Reserve(edited.moved_count);
  kernels.LargestSentKeys(row, edited.moved_groups, edited.moved_count, largest);
  bool has_first_moved = false;
  uint32_t max_key = 0;
  for (uint32_t i = 0; i < edited.moved_count; ++i) {
    const uint32_t group = edited.moved_groups[i];
    has_first_moved |= raw.maxima[group] == raw.max_key;
    maxima[group] = std::max(largest[i], LargestEditedKey(row, group));
    max_key = std::max(max_key, maxima[group]);
  }
  return has_first_moved ? maxima[kernels.FindMax(maxima, row.groups)] : std::max(max_key, raw.max_key);
}

void RaiseMaxima(uint32_t* maxima, RowView* row) {
  for (const Candidate& candidate : row->edited) {
    uint32_t& max = maxima[candidate.token() / law::kGroupSize];
    max = std::max(max, candidate.key());
    row->max_key = std::max(row->max_key, candidate.key());
  }
}

}  // namespace

bool ChangeRow(const Kernels& kernels, const RowRequest& request, const RowView& raw, Scratch* scratch, RowView* row,
               RowOutput* answer) {
  *row = raw;
  const std::span<const LogitEdit> edits = request.edits;
  const bool masked = IsMasked(request);
  if (edits.empty() && !masked) return true;
  const EditsSeen seen = kernels.LookAtEdits(edits);
  SORTITION_CHECK(seen.ascend && (edits.empty() || edits.back().token < request.live_vocabulary));
  if (ListFirst(kernels, request, raw, seen.may_raise, scratch, row)) return true;

  const size_t padded = (raw.groups + 63) / 64 * 64;
  uint32_t* const maxima = scratch->changed_maxima.Reserve(raw.groups);
  if (const uint64_t* const in_place = edits.empty() ? AllowedWordsInPlace(request) : nullptr) {
    row->sent_words = in_place;
    MaskMaxima(kernels, request, scratch, maxima, row);
    return true;
  }
  uint64_t* const words = scratch->sent_words.Reserve(raw.groups);
  FillAllowedWords(request, raw.groups, words);
  if (masked) row->sent_words = words;
  Edited edited;
  if (!edits.empty()) {
    edited.live = scratch->edited.Reserve(edits.size());
    edited.moved_groups = scratch->groups.Reserve(edits.size());
    edited.moved_keys = scratch->moved_keys.Reserve(edits.size());
    if (!kernels.EditTokens(*row, *request.parameters, edits, words, &edited)) {
      FillAllowedWords(request, raw.groups, words);
      answer->error = RowFault::kLogitTooLarge;
      answer->error_token = FindTooLarge(request, *row);
      return false;
    }
    row->sent_words = words;
    row->edited = {edited.live, edited.live_count};
  }
  if (masked) {
    MaskMaxima(kernels, request, scratch, maxima, row);
    RaiseMaxima(maxima, row);
    return true;
  }
  row->maxima = maxima;
  if (edited.moved_count <= kFewMoved) {
    std::copy_n(raw.maxima, padded, maxima);
    row->max_key = SettleMoved(kernels, raw, *row, edited, scratch, maxima);
    row->reached = maxima;
  } else {
    uint32_t* const reached = scratch->reached.Reserve(raw.groups);
    std::copy_n(raw.maxima, padded, maxima);
    std::copy_n(raw.maxima, padded, reached);
    MoveMaxima(edited, maxima, reached);
    row->max_key = SettleFirst(kernels, *row, scratch, maxima, reached);
    row->reached = reached;
  }
  return true;
}

}  // namespace sortition::kernels::cpu

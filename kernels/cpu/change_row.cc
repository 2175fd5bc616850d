// Changes and the group maxima that follow from them.
#include "kernels/cpu/change_row.h"

#include <algorithm>

#include "kernels/check.h"
#include "kernels/cpu/allowed_words.h"
#include "kernels/cpu/read_row.h"
#include "kernels/law/row_law.h"

namespace sortition::kernels::cpu {
namespace {

// The maxima of groups that are masked in part.
void MaskMaxima(const Kernels& kernels, const Row& row, Scratch* scratch, uint32_t* maxima) {
  uint32_t* const partly = scratch->groups.Reserve(row.groups);
  uint32_t count = 0;
  for (uint32_t group = 0; group < row.groups; ++group) {
    if (row.sent_words[group] == 0) maxima[group] = 0;
    if (row.sent_words[group] != 0 && row.sent_words[group] != ~uint64_t{0}) partly[count++] = group;
  }
  uint32_t* const keys = scratch->folded.Reserve(count);
  kernels.LargestSentKeys(row, partly, count, keys);
  for (uint32_t i = 0; i < count; ++i) maxima[partly[i]] = keys[i];
}

// Whether a mask spares the token that a patch names.
bool IsAllowed(const Row& masked, const TokenPatch& patch) {
  return masked.sent_words == nullptr || (masked.sent_words[patch.token / 64] >> (patch.token % 64) & 1) != 0;
}

// The first token that its patch makes too large. Of the law's text: this runs once, for a row that has failed.
uint32_t FindTooLarge(const RowRequest& request, const Row& masked) {
  for (const TokenPatch& patch : request.patches) {
    if (!IsAllowed(masked, patch) || (patch.flags & TokenPatch::kBanned) != 0) continue;
    const bool repeated = (patch.flags & TokenPatch::kRepeated) != 0;
    const uint32_t bits = law::Changed(law::Canonical(SentBits(request, patch.token)), patch.bias,
                                       repeated ? request.parameters->repetition : 0,
                                       repeated ? request.parameters->inverse_repetition : 0, patch.penalty);
    if (law::IsTooLarge(bits)) return patch.token;
  }
  CheckFailed("some patch makes its token too large", __FILE__, __LINE__);
}

// The maxima after patches; `row` has its patched tokens.
void MoveMaxima(const Kernels& kernels, const Row& row, std::span<const TokenPatch> patches, const Patched& patched,
                Scratch* scratch, uint32_t* maxima) {
  uint32_t* const largest = scratch->folded.Reserve(patched.group_count);
  kernels.LargestSentKeys(row, patched.groups, patched.group_count, largest);
  for (uint32_t i = 0; i < patched.group_count; ++i) maxima[patched.groups[i]] = largest[i];
  for (size_t i = 0; i < patches.size(); ++i) {
    uint32_t& max = maxima[patches[i].token / law::kGroupSize];
    max = std::max(max, patched.keys[i]);
  }
}

}  // namespace

bool ChangeRow(const Kernels& kernels, const RowRequest& request, const Row& raw, Scratch* scratch, Row* row,
               RowAnswer* answer) {
  *row = raw;
  const std::span<const TokenPatch> patches = request.patches;
  const bool mask_is_laid = raw.sent_words != nullptr;  // when the row was read
  if (patches.empty() && (!IsMasked(request) || mask_is_laid)) return true;

  uint32_t* const maxima = scratch->changed_maxima.Reserve(raw.groups);
  std::copy_n(raw.maxima, (raw.groups + 63) / 64 * 64, maxima);
  uint64_t* const words = scratch->sent_words.Reserve(raw.groups);
  if (!mask_is_laid) FillAllowedWords(request, raw.groups, words);
  row->maxima = maxima;
  if (IsMasked(request) && !mask_is_laid) {
    row->sent_words = words;
    MaskMaxima(kernels, *row, scratch, maxima);
  }
  if (!patches.empty()) {
    Patched patched;
    patched.keys = scratch->patch_keys.Reserve(patches.size());
    patched.live = scratch->patched.Reserve(patches.size());
    patched.groups = scratch->groups.Reserve(patches.size());
    if (!kernels.PatchTokens(*row, *request.parameters, patches, words, &patched)) {
      FillAllowedWords(request, raw.groups, words);
      answer->error = RowError::kLogitTooLarge;
      answer->error_token = FindTooLarge(request, *row);
      return false;
    }
    row->sent_words = words;
    row->patched = {patched.live, patched.live_count};
    MoveMaxima(kernels, *row, patches, patched, scratch, maxima);
  }
  row->max_key = maxima[kernels.FindMax(maxima, row->groups)];
  return true;
}

}  // namespace sortition::kernels::cpu

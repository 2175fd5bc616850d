// Changes and the group maxima that follow from them.
#include "kernels/cpu/change_row.h"

#include <algorithm>

#include "kernels/check.h"
#include "kernels/cpu/allowed_words.h"
#include "kernels/cpu/read_row.h"
#include "kernels/law/row_law.h"

namespace sortition::kernels::cpu {
namespace {

constexpr uint32_t kAllGroups = ~0u;

// So many groups that come first, by their maxima, have to have exact ones: as many as selection asks for.
uint32_t ExactGroups(const RowRequest& request) {
  constexpr uint32_t kForTopP = 256;  // not needed, but where its search is at its best
  const RowParameters& parameters = *request.parameters;
  if (parameters.greedy) return 1;
  if (!parameters.chain.empty()) return kAllGroups;
  const uint32_t first = parameters.top_k != 0 ? parameters.top_k : parameters.top_p != 0 ? kForTopP : 1;
  return std::max(first, parameters.processed_top);
}

// The maxima of a masked row: exact of `exact` groups at least that come first, or of all; of the others, that lie
// below them, perhaps those of masked tokens. `maxima` has the unmasked row's.
void MaskMaxima(const Kernels& kernels, const Row& row, uint32_t exact, Scratch* scratch, uint32_t* maxima) {
  kernels.MaskWholeGroups(row.sent_words, row.groups, maxima);
  uint32_t* const groups = scratch->groups.Reserve(row.groups);
  // Of twice as many and more the largest are looked for: a mask leaves some of them.
  for (uint64_t leading = 4 * uint64_t{exact};; leading *= 4) {
    const bool all = leading >= row.groups;
    uint32_t* const folded = scratch->folded.Reserve(row.groups);
    const uint32_t level = all ? 1 : kernels.LowerBoundOfNth(maxima, row.groups, uint32_t(leading), 1, folded);
    const uint32_t reached = kernels.SelectAtLeast(maxima, row.groups, level, groups);
    uint32_t count = 0;
    for (uint32_t i = 0; i < reached; ++i) {
      groups[count] = groups[i];
      count += row.sent_words[groups[i]] != ~uint64_t{0};
    }
    uint32_t* const keys = scratch->folded.Reserve(count);
    kernels.LargestSentKeys(row, groups, count, keys);
    for (uint32_t i = 0; i < count; ++i) maxima[groups[i]] = keys[i];
    if (level == 1 || kernels.SelectAtLeast(maxima, row.groups, level, groups) >= exact) return;
  }
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

// What patches make of the maxima. Of a group whose largest token was patched only bounds are known then: it is not
// read again.
void MoveMaxima(const Patched& patched, uint32_t* maxima, uint32_t* reached) {
  for (uint32_t i = 0; i < patched.moved_count; ++i) {
    const uint32_t group = patched.moved_groups[i];
    const uint32_t key = patched.moved_keys[i];
    reached[group] = key;
    maxima[group] = std::max(maxima[group], key);
  }
}

uint32_t LargestPatchedKey(const Row& row, uint32_t group) {
  uint32_t largest = 0;
  auto at = std::ranges::lower_bound(row.patched, group * law::kGroupSize, {}, &Candidate::token);
  for (; at != row.patched.end() && at->token() / law::kGroupSize == group; ++at)
    largest = std::max(largest, at->key());
  return largest;
}

// Reads those groups that may hold the largest key of all; returns it.
uint32_t SettleFirst(const Kernels& kernels, const Row& row, Scratch* scratch, uint32_t* maxima, uint32_t* reached) {
  const uint32_t level = std::max(1u, reached[kernels.FindMax(reached, row.groups)]);
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
    reached[groups[i]] = maxima[groups[i]] = std::max(largest[i], LargestPatchedKey(row, groups[i]));
  }
  return maxima[kernels.FindMax(maxima, row.groups)];
}

void RaiseMaxima(std::span<const Candidate> patched, uint32_t* maxima) {
  for (const Candidate& candidate : patched) {
    uint32_t& max = maxima[candidate.token() / law::kGroupSize];
    max = std::max(max, candidate.key());
  }
}

}  // namespace

bool ChangeRow(const Kernels& kernels, const RowRequest& request, const Row& raw, Scratch* scratch, Row* row,
               RowAnswer* answer) {
  *row = raw;
  const std::span<const TokenPatch> patches = request.patches;
  const bool masked = IsMasked(request);
  if (patches.empty() && !masked) return true;

  uint32_t* const maxima = scratch->changed_maxima.Reserve(raw.groups);
  std::copy_n(raw.maxima, (raw.groups + 63) / 64 * 64, maxima);
  uint64_t* const words = scratch->sent_words.Reserve(raw.groups);
  FillAllowedWords(request, raw.groups, words);
  if (masked) row->sent_words = words;
  Patched patched;
  if (!patches.empty()) {
    patched.live = scratch->patched.Reserve(patches.size());
    patched.moved_groups = scratch->groups.Reserve(patches.size());
    patched.moved_keys = scratch->moved_keys.Reserve(patches.size());
    if (!kernels.PatchTokens(*row, *request.parameters, patches, words, &patched)) {
      FillAllowedWords(request, raw.groups, words);
      answer->error = RowError::kLogitTooLarge;
      answer->error_token = FindTooLarge(request, *row);
      return false;
    }
    row->sent_words = words;
    row->patched = {patched.live, patched.live_count};
  }
  row->maxima = maxima;
  if (masked) {
    MaskMaxima(kernels, *row, ExactGroups(request), scratch, maxima);
    RaiseMaxima(row->patched, maxima);
    row->reached = maxima;
    row->max_key = maxima[kernels.FindMax(maxima, row->groups)];
  } else {
    uint32_t* const reached = scratch->reached.Reserve(raw.groups);
    std::copy_n(raw.maxima, (raw.groups + 63) / 64 * 64, reached);
    MoveMaxima(patched, maxima, reached);
    row->max_key = SettleFirst(kernels, *row, scratch, maxima, reached);
    row->reached = reached;
  }
  return true;
}

}  // namespace sortition::kernels::cpu

// Changes and the group maxima that follow from them.
#include "kernels/cpu/change_row.h"

#include <algorithm>

#include "kernels/cpu/element.h"

namespace sortition::kernels::cpu {
namespace {

// One word a group, whichever way the masks are given; bits past the vocabulary are of no account.
void FillAllowedWords(const RowRequest& request, std::vector<uint64_t>* words) {
  const uint32_t groups = GroupsOf(request.live_vocabulary);
  words->assign(groups, request.has_allowed_tokens ? 0 : ~uint64_t{0});
  for (const uint32_t token : request.allowed_tokens) (*words)[token / 64] |= uint64_t{1} << (token % 64);
  if (request.allowed_bits == nullptr) return;
  const uint32_t half_words = (request.live_vocabulary + 31) / 32;
  for (uint32_t group = 0; group < groups; ++group) {
    uint64_t word = request.allowed_bits[2 * group];
    if (2 * group + 1 < half_words) word |= uint64_t{request.allowed_bits[2 * group + 1]} << 32;
    (*words)[group] &= word;
  }
}

// The bits that a patch leaves of a token that no mask has taken.
uint32_t PatchedBits(const RowRequest& request, const TokenPatch& patch) {
  if ((patch.flags & TokenPatch::kBanned) != 0) return law::kMaskedBits;
  const uint32_t sent = WithDType(request.dtype, [&]<DType kType>() { return SentBits<kType>(request, patch.token); });
  const bool repeated = (patch.flags & TokenPatch::kRepeated) != 0;
  const RowParameters& parameters = *request.parameters;
  return law::Changed(law::Canonical(sent), patch.bias, repeated ? parameters.repetition : 0,
                      repeated ? parameters.inverse_repetition : 0, patch.penalty);
}

uint32_t MaxKey(const Row& row, uint32_t group) {
  GroupKeys keys;
  LoadKeys(row, group, &keys);
  return *std::max_element(keys.begin(), keys.end());
}

}  // namespace

bool ChangeRow(const Row& raw, Scratch* scratch, Row* row, RowAnswer* answer) {
  *row = raw;
  const RowRequest& request = *raw.request;
  const bool masked = request.has_allowed_tokens || request.allowed_bits != nullptr;
  if (!masked && request.patches.empty()) return true;

  if (masked) {
    FillAllowedWords(request, &scratch->allowed_words);
    row->allowed_words = scratch->allowed_words;
  }
  scratch->patch_keys.clear();
  for (const TokenPatch& patch : request.patches) {
    const bool allowed = !masked || (scratch->allowed_words[patch.token / 64] >> (patch.token % 64) & 1) != 0;
    const uint32_t bits = allowed ? PatchedBits(request, patch) : law::kMaskedBits;
    if (law::IsTooLarge(bits)) {
      answer->error = RowError::kLogitTooLarge;
      answer->error_token = patch.token;
      return false;
    }
    scratch->patch_keys.push_back(law::Key(bits));
  }
  row->patch_keys = scratch->patch_keys;

  std::vector<uint32_t>& maxima = scratch->changed_maxima;
  maxima.assign(raw.maxima.begin(), raw.maxima.end());
  if (masked) {
    for (uint32_t group = 0; group < maxima.size(); ++group) {
      const uint64_t allowed = scratch->allowed_words[group];
      if (allowed == 0) maxima[group] = 0;
      if (allowed != 0 && allowed != ~uint64_t{0}) maxima[group] = MaxKey(*row, group);
    }
  }
  uint32_t last_group = ~0u;
  for (const TokenPatch& patch : request.patches) {
    const uint32_t group = patch.token / law::kGroupSize;
    if (group != last_group) maxima[group] = MaxKey(*row, group);
    last_group = group;
  }
  row->maxima = maxima;
  row->max_key = *std::max_element(maxima.begin(), maxima.end());
  return true;
}

}  // namespace sortition::kernels::cpu

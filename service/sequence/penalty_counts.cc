// Counts to patches.
#include "service/sequence/penalty_counts.h"

#include <algorithm>

#include "kernels/law/parameters.h"

namespace sortition::service {
namespace {

using kernels::TokenPatch;

bool Listed(const TokenPatch& patch) { return patch.bias != 0 || (patch.flags & TokenPatch::kBanned) != 0; }

}  // namespace

TokenPatch PatchOf(const SequenceSpec& spec, const TokenPatch& listed, TokenCount count, double dry) {
  const PenaltyScope& scope = spec.history.scope;
  const uint32_t repeated = count.in_output + (scope.repetition_counts_prompt ? count.in_prompt : 0);
  const uint32_t frequent = count.in_output + (scope.frequency_counts_prompt ? count.in_prompt : 0);
  TokenPatch patch = listed;
  patch.flags = listed.flags & TokenPatch::kBanned;
  if (spec.repetition_penalty != 1 && repeated > 0) patch.flags |= TokenPatch::kRepeated;
  patch.penalty = law::PenaltyBits(spec.frequency_penalty, spec.presence_penalty, frequent, dry);
  return patch;
}

PenaltyCounts::PenaltyCounts(const SequenceSpec& spec, const Counts& counts) {
  std::vector<TokenPatch> listed = spec.listed_patches;
  for (const auto& [token, count] : counts) {
    if (!std::ranges::binary_search(spec.listed_patches, token, {}, &TokenPatch::token)) {
      listed.push_back(TokenPatch{.token = token});
    }
  }
  std::ranges::sort(listed, {}, &TokenPatch::token);
  patches_.reserve(listed.size());
  counts_.reserve(listed.size());
  for (const TokenPatch& patch : listed) {
    const auto it = counts.find(patch.token);
    const TokenCount count = it == counts.end() ? TokenCount{} : it->second;
    patches_.push_back(PatchOf(spec, patch, count));
    counts_.push_back(count);
  }
}

void PenaltyCounts::Add(const SequenceSpec& spec, uint32_t token, bool output, int32_t change) {
  const auto at = std::ranges::lower_bound(patches_, token, {}, &TokenPatch::token);
  const ptrdiff_t index = at - patches_.begin();
  const bool known = at != patches_.end() && at->token == token;
  TokenCount count = known ? counts_[index] : TokenCount{};
  (output ? count.in_output : count.in_prompt) += change;
  const TokenPatch patch = PatchOf(spec, known ? *at : TokenPatch{.token = token}, count);

  if (count.all() == 0 && !Listed(patch)) {
    patches_.erase(at);
    counts_.erase(counts_.begin() + index);
  } else if (known) {
    patches_[index] = patch;
    counts_[index] = count;
  } else {
    patches_.insert(at, patch);
    counts_.insert(counts_.begin() + index, count);
  }
}

PenaltyCounts::Counts PenaltyCounts::ByToken() const {
  Counts counts;
  for (size_t i = 0; i < counts_.size(); ++i) {
    if (counts_[i].all() > 0) counts[patches_[i].token] = counts_[i];
  }
  return counts;
}

uint64_t PenaltyCounts::bytes() const {
  return sizeof(*this) + patches_.capacity() * sizeof(TokenPatch) + counts_.capacity() * sizeof(TokenCount);
}

}  // namespace sortition::service

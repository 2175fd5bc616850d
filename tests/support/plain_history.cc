// Counting, and looking back token by token.
#include "tests/support/plain_history.h"

#include <map>

#include "kernels/law/parameters.h"

namespace sortition::testing {
namespace {

using kernels::TokenPatch;

class Patches {
 public:
  TokenPatch& operator[](uint32_t token) {
    TokenPatch& patch = patches_[token];
    patch.token = token;
    return patch;
  }
  std::vector<TokenPatch> Sorted() const {
    std::vector<TokenPatch> sorted;
    for (const auto& [token, patch] : patches_) sorted.push_back(patch);
    return sorted;
  }

 private:
  std::map<uint32_t, TokenPatch> patches_;
};

}  // namespace

std::vector<TokenPatch> PlainPatches(const v1::SamplingParameters& p, const std::vector<uint32_t>& tokens,
                                     uint32_t prompt_length) {
  Patches patches;
  for (const v1::LogitBias& bias : p.logit_bias()) patches[bias.token()].bias = law::CanonicalBits(bias.bias());
  for (const uint32_t token : p.banned_token_ids()) patches[token].flags |= TokenPatch::kBanned;

  const v1::PenaltyScope& scope = p.penalty_scope();
  const bool repeats = p.has_repetition_penalty() && p.repetition_penalty() != 1;
  const bool repetition_in_prompt = !scope.has_repetition_counts_prompt() || scope.repetition_counts_prompt();
  std::map<uint32_t, uint32_t> frequent;
  for (size_t i = 0; i < tokens.size(); ++i) {
    const bool in_prompt = i < prompt_length;
    if (in_prompt && i < scope.ignored_prefix()) continue;
    if (scope.window() != 0 && tokens.size() - i > scope.window()) continue;
    if (repeats && (!in_prompt || repetition_in_prompt)) patches[tokens[i]].flags |= TokenPatch::kRepeated;
    if (!in_prompt || scope.frequency_counts_prompt()) ++frequent[tokens[i]];
  }
  if (p.frequency_penalty() != 0 || p.presence_penalty() != 0) {
    for (const auto& [token, count] : frequent) {
      patches[token].penalty = law::PenaltyBits(p.frequency_penalty(), p.presence_penalty(), count);
    }
  }
  return patches.Sorted();
}

}  // namespace sortition::testing

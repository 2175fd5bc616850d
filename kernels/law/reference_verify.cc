// SPECULATION.md, step by step.
#include "kernels/law/reference_verify.h"

#include <algorithm>
#include <optional>

#include "kernels/check.h"
#include "kernels/law/block.h"
#include "kernels/law/draft_probability.h"
#include "kernels/law/row_law.h"
#include "kernels/law/token_noise.h"

namespace sortition::law {
namespace {

using kernels::RowError;
using kernels::RowRequest;
using kernels::TokenBits;

// The draw among tokens of these weights, index by index; nothing where all are 0.
std::optional<TokenBits> RaceOf(const std::vector<TokenBits>& tokens, const std::vector<u64>& weights,
                                const DrawKey& key) {
  std::optional<TokenBits> winner;
  int64_t best = 0;
  for (size_t i = 0; i < tokens.size(); ++i) {
    if (weights[i] == 0) continue;
    const auto race = int64_t(ResidualRaceKey(weights[i], TokenNoise(key, tokens[i].token)));
    if (!winner || race < best || (race == best && tokens[i].token < winner->token)) {
      winner = tokens[i];
      best = race;
    }
  }
  return winner;
}

// Draws among weights of which some are left; among those of the target where roundings leave none.
TokenBits DrawLeft(const std::vector<TokenBits>& kept, const std::vector<u64>& left, const std::vector<u64>& weights,
                   const DrawKey& key) {
  if (const auto winner = RaceOf(kept, left, key)) return *winner;
  const auto winner = RaceOf(kept, weights, key);
  SORTITION_CHECK(winner.has_value());
  return *winner;
}

Verdict VerifyBlock(const RowRequest& request, const std::vector<TokenBits>& kept, const std::vector<u64>& weights,
                    u64 sum) {
  const DrawKey key = KeyOf(request.noise);
  const PhiloxWords words = BlockWords(key);
  Verdict verdict;
  std::vector<u64> residuals;
  u64 shared = 0;
  for (size_t i = 0; i < kept.size(); ++i) {
    const u64 draft_weight = DraftWeight(DraftBits(request, kept[i].token), sum);
    residuals.push_back(BlockResidual(weights[i], draft_weight, request.survival));
    shared += Shared(weights[i], draft_weight, request.survival);
    if (kept[i].token != request.given) continue;
    verdict.survival = NextSurvival(request.survival, weights[i], draft_weight);
  }
  verdict.accepted = MayEnd(WordOf(words, 1), sum, shared, request.survival);
  verdict.token = DrawLeft(kept, residuals, weights, ResidualKey(words, key));
  return verdict;
}

}  // namespace

DraftError CheckDraft(const RowRequest& request) {
  if (request.draft.form != kernels::DraftDistribution::Form::kDense) return {};
  u64 units = 0;
  for (u32 id = 0; id < request.live_vocabulary; ++id) {
    const u32 q = DraftBits(request, id);
    if (!IsProbability(q)) return {RowError::kDraftNoProbability, id};
    units += ProbabilityUnits(q);
  }
  if (!IsWhole(units)) return {RowError::kDraftSum, 0};
  if ((DraftBits(request, request.given) & 0x7fffffffu) == 0) return {RowError::kDraftImpossible, request.given};
  return {};
}

Verdict VerifyReference(const RowRequest& request, const std::vector<TokenBits>& kept, const DistanceOf& distance) {
  const DrawKey key = KeyOf(request.noise);
  const PhiloxWords words = NoiseWords(0, kVerifyTag, key);
  std::vector<u64> weights;
  u64 sum = 0;
  for (const TokenBits& token : kept) {
    weights.push_back(Weight(distance(token.bits)));
    sum += weights.back();
  }
  if (request.survival != RowRequest::kNoBlock) return VerifyBlock(request, kept, weights, sum);
  for (size_t i = 0; i < kept.size(); ++i) {
    if (kept[i].token != request.given) continue;
    const u64 draft_weight = DraftWeight(DraftBits(request, request.given), sum);
    if (Accepts(WordOf(words, 1), weights[i], draft_weight)) return {kept[i], true};
  }
  std::vector<u64> residuals;
  for (size_t i = 0; i < kept.size(); ++i) {
    residuals.push_back(Residual(weights[i], DraftWeight(DraftBits(request, kept[i].token), sum)));
  }
  // Nothing is left where the drafter gives every kept token as much as the target does.
  return {DrawLeft(kept, residuals, weights, ResidualKey(words, key)), false};
}

}  // namespace sortition::law

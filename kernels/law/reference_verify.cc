// SPECULATION.md, step by step.
#include "kernels/law/reference_verify.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "kernels/check.h"
#include "kernels/law/block.h"
#include "kernels/law/draft_probability.h"
#include "kernels/law/rounds.h"
#include "kernels/law/row_law.h"
#include "kernels/law/token_noise.h"

namespace sortition::law {
namespace {

using kernels::RowFault;
using kernels::RowRequest;
using kernels::TokenBits;

// The draw among tokens with the weights of the same index; nothing if all are 0.
std::optional<TokenBits> RunRace(const std::vector<TokenBits>& tokens, const std::vector<u64>& weights,
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

// Draws from the residual weights, or from the target's weights if rounding left none.
TokenBits DrawLeft(const std::vector<TokenBits>& kept, const std::vector<u64>& left, const std::vector<u64>& weights,
                   const DrawKey& key) {
  if (const auto winner = RunRace(kept, left, key)) return *winner;
  const auto winner = RunRace(kept, weights, key);
  SORTITION_CHECK(winner.has_value());
  return *winner;
}

Verdict VerifyBlock(const RowRequest& request, const std::vector<TokenBits>& kept, const std::vector<u64>& weights,
                    u64 sum) {
  const DrawKey key = ToDrawKey(request.noise);
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

// Returns the drafter's weights in the round after the drafts `tried`; those are gone without replacement.
std::vector<u64> DraftWeightsAfter(const RowRequest& request, const std::vector<TokenBits>& kept,
                                   const std::vector<u32>& tried, u64 sum) {
  const auto left = [&](u32 token) {
    const bool is_gone = !request.draft.with_replacement && std::ranges::find(tried, token) != tried.end();
    return is_gone ? 0u : DraftBits(request, token);
  };
  RoundDrafter drafter = RoundDrafter::Whole(sum);
  if (!request.draft.with_replacement && !tried.empty()) {
    u32 largest = 0;
    for (u32 id = 0; id < request.live_vocabulary; ++id) largest = std::max(largest, ProbabilityExponent(left(id)));
    u64 units = 0;
    for (u32 id = 0; id < request.live_vocabulary; ++id) units += LeftUnits(left(id), largest);
    drafter = largest == 0 ? RoundDrafter::Nothing() : RoundDrafter::Left(sum, largest, units);
  }
  std::vector<u64> weights;
  for (const TokenBits& token : kept) weights.push_back(drafter.Weight(left(token.token)));
  return weights;
}

Verdict VerifyRounds(const RowRequest& request, const std::vector<TokenBits>& kept, std::vector<u64> weights, u64 sum) {
  const DrawKey key = ToDrawKey(request.noise);
  std::vector<u32> tried;
  std::vector<u32> drafts = {request.given};
  drafts.insert(drafts.end(), request.rivals.begin(), request.rivals.end());
  for (const u32 draft : drafts) {
    const std::vector<u64> drafters = DraftWeightsAfter(request, kept, tried, sum);
    const u64 word = WordOf(RoundWords(u32(tried.size()), key), 1);
    std::vector<u64> residuals;
    u64 left = 0;
    for (size_t i = 0; i < kept.size(); ++i) {
      if (kept[i].token == draft && Accepts(word, weights[i], drafters[i])) return {kept[i], true};
      residuals.push_back(Residual(weights[i], drafters[i]));
      left += residuals.back();
    }
    tried.push_back(draft);
    if (left == 0) continue;
    weights = residuals;
    sum = left;
  }
  return {DrawLeft(kept, weights, weights, ResidualKey(RoundWords(0, key), key)), false};
}

}  // namespace

DraftError CheckDraft(const RowRequest& request) {
  if (request.draft.form != kernels::DraftDistribution::Form::kDense) return {};
  u64 units = 0;
  for (u32 id = 0; id < request.live_vocabulary; ++id) {
    const u32 q = DraftBits(request, id);
    if (!IsProbability(q)) return {RowFault::kDraftNoProbability, id};
    units += ProbabilityUnits(q);
  }
  if (!IsWhole(units)) return {RowFault::kDraftSum, 0};
  if ((DraftBits(request, request.given) & 0x7fffffffu) == 0) return {RowFault::kDraftImpossible, request.given};
  for (const u32 rival : request.rivals) {
    if ((DraftBits(request, rival) & 0x7fffffffu) == 0) return {RowFault::kDraftImpossible, rival};
  }
  return {};
}

Verdict VerifyReference(const RowRequest& request, const std::vector<TokenBits>& kept, const DistanceOf& distance) {
  const DrawKey key = ToDrawKey(request.noise);
  const PhiloxWords words = NoiseWords(0, kVerifyTag, key);
  std::vector<u64> weights;
  u64 sum = 0;
  for (const TokenBits& token : kept) {
    weights.push_back(Weight(distance(token.bits)));
    sum += weights.back();
  }
  if (request.survival != RowRequest::kNoBlock) return VerifyBlock(request, kept, weights, sum);
  if (!request.rivals.empty()) return VerifyRounds(request, kept, std::move(weights), sum);
  for (size_t i = 0; i < kept.size(); ++i) {
    if (kept[i].token != request.given) continue;
    const u64 draft_weight = DraftWeight(DraftBits(request, request.given), sum);
    if (Accepts(WordOf(words, 1), weights[i], draft_weight)) return {kept[i], true};
  }
  std::vector<u64> residuals;
  for (size_t i = 0; i < kept.size(); ++i) {
    residuals.push_back(Residual(weights[i], DraftWeight(DraftBits(request, kept[i].token), sum)));
  }
  // No residual is left if the drafter gives every kept token the probability that the target gives it.
  return {DrawLeft(kept, residuals, weights, ResidualKey(words, key)), false};
}

}  // namespace sortition::law

// The law, step by step in the order of LAW.md: every id is visited, everything is sorted, every token's noise is
// drawn.
#include "kernels/law/reference.h"

#include <algorithm>
#include <cstring>
#include <functional>
#include <optional>
#include <vector>

#include "kernels/check.h"
#include "kernels/check_row.h"
#include "kernels/law/chain.h"
#include "kernels/law/reference_chain.h"
#include "kernels/law/row_law.h"

namespace sortition::law {
namespace {

using kernels::Distribution;
using kernels::RowAnswer;
using kernels::RowError;
using kernels::RowParameters;
using kernels::RowRequest;
using kernels::TokenBits;
using kernels::TokenPatch;

// The logit as it was sent, as f32 bits.
u32 SentBits(const RowRequest& request, u32 id) {
  const u32 bytes = kernels::ElementBytes(request.dtype);
  u32 element = 0;
  std::memcpy(&element, static_cast<const char*>(request.logits) + size_t{id} * bytes, bytes);
  return Widen(request.dtype, element);
}

bool IsAllowed(const RowRequest& request, u32 id) {
  if (request.allowed_bits != nullptr && (request.allowed_bits[id / 32] >> (id % 32) & 1) == 0) return false;
  if (!request.has_allowed_tokens) return true;
  return std::binary_search(request.allowed_tokens.begin(), request.allowed_tokens.end(), id);
}

RowError ErrorOf(u32 sent, const RowParameters& parameters) {
  if (IsNan(sent)) return parameters.mask_nan ? RowError::kNone : RowError::kNaN;
  return IsTooLarge(sent) ? RowError::kLogitTooLarge : RowError::kNone;
}

RowAnswer Failed(RowError error, u32 id) {
  RowAnswer answer;
  answer.error = error;
  answer.error_token = id;
  return answer;
}

// The bits after masks, bans, bias and penalties.
u32 ChangedBits(const RowRequest& request, const TokenPatch* patch, TokenBits token) {
  if (!IsAllowed(request, token.token)) return kMaskedBits;
  if (patch == nullptr) return token.bits;
  if ((patch->flags & TokenPatch::kBanned) != 0) return kMaskedBits;
  const bool repeated = (patch->flags & TokenPatch::kRepeated) != 0;
  const RowParameters& parameters = *request.parameters;
  return Changed(token.bits, patch->bias, repeated ? parameters.repetition : 0,
                 repeated ? parameters.inverse_repetition : 0, patch->penalty);
}

const TokenPatch* FindPatch(const RowRequest& request, u32 id) {
  const auto patch = std::ranges::lower_bound(request.patches, id, {}, &TokenPatch::token);
  return patch != request.patches.end() && patch->token == id ? &*patch : nullptr;
}

bool InOrder(const TokenBits& a, const TokenBits& b) { return Before(Key(a.bits), a.token, Key(b.bits), b.token); }

// The tokens that are not masked, first in order first.
std::vector<TokenBits> LiveInOrder(std::vector<TokenBits> tokens) {
  std::erase_if(tokens, [](const TokenBits& token) { return token.bits == kMaskedBits; });
  std::sort(tokens.begin(), tokens.end(), InOrder);
  return tokens;
}

// The distance of a token of these bits, at the scale and in the shape that a distribution has.
using DistanceOf = std::function<u32(u32 bits)>;

u64 SumOfWeights(const std::vector<TokenBits>& tokens, const DistanceOf& distance) {
  u64 sum = 0;
  for (const TokenBits& token : tokens) sum += Weight(distance(token.bits));
  return sum;
}

DistanceOf DistanceAt(const Scale& scale) {
  return [scale](u32 bits) { return Distance(bits, scale); };
}

// Drops from the tokens, which stand in order, those that a filter does not keep.
void Filter(const RowParameters& parameters, const DistanceOf& distance, std::vector<TokenBits>* tokens) {
  if (parameters.min_p_distance != RowParameters::kMinPOff) {
    std::erase_if(*tokens, [&](const TokenBits& token) {
      const u32 t = distance(token.bits);
      return t == kDead || t > parameters.min_p_distance;
    });
  }
  if (parameters.top_k != 0 && parameters.top_k < tokens->size()) tokens->resize(parameters.top_k);
  if (parameters.top_p != 0) {
    const u64 threshold = TopPThreshold(SumOfWeights(*tokens, distance), parameters.top_p);
    u64 sum = 0;
    size_t kept = 0;
    while (sum < threshold) sum += Weight(distance((*tokens)[kept++].bits));
    tokens->resize(kept);
  }
}

// L of one token, from nothing but the draw's key and its id.
u64 NoiseLog(const DrawKey& key, u32 id) {
  const u32 group = id / kGroupSize;
  const u64 group_word = WordOf(NoiseWords(group / 2, kGroupTag, key), group);
  const u64 a = NegLog2(Uniform(group_word));
  if (Owner(group_word) == id % kGroupSize) return OwnerLog(a);
  return OtherLog(a, NegLog2(Uniform(WordOf(NoiseWords(id / 2, kTokenTag, key), id))));
}

TokenBits Race(const std::vector<TokenBits>& kept, const DistanceOf& distance, const DrawKey& key) {
  std::optional<TokenBits> winner;
  int64_t best = 0;
  for (const TokenBits& token : kept) {
    const u32 t = distance(token.bits);
    if (t == kDead) continue;
    const int64_t race = SignedRaceKey(t, NoiseLog(key, token.token));
    if (!winner || race < best || (race == best && token.token < winner->token)) {
      winner = token;
      best = race;
    }
  }
  SORTITION_CHECK(winner.has_value());
  return *winner;
}

// `tokens` stand in order and `token` is one of them.
Distribution Describe(const std::vector<TokenBits>& tokens, const DistanceOf& distance, u32 token, u32 top) {
  Distribution distribution;
  distribution.max_bits = tokens[0].bits;
  distribution.weight_sum = SumOfWeights(tokens, distance);
  const auto chosen = std::find_if(tokens.begin(), tokens.end(), [&](const TokenBits& t) { return t.token == token; });
  SORTITION_CHECK(chosen != tokens.end());
  distribution.chosen = *chosen;
  distribution.rank = 1 + u32(chosen - tokens.begin());
  distribution.top.assign(tokens.begin(), tokens.begin() + std::min<size_t>(top, tokens.size()));
  return distribution;
}

}  // namespace

RowAnswer SampleRowReference(const RowRequest& request) {
  kernels::CheckRow(request);
  const RowParameters& parameters = *request.parameters;

  std::vector<TokenBits> raw;
  for (u32 id = 0; id < request.live_vocabulary; ++id) {
    const u32 sent = SentBits(request, id);
    const RowError error = ErrorOf(sent, parameters);
    if (error != RowError::kNone) return Failed(error, id);
    raw.push_back({id, Canonical(sent)});
  }

  std::vector<TokenBits> changed;
  for (const TokenBits& token : raw) {
    const u32 bits = ChangedBits(request, FindPatch(request, token.token), token);
    if (IsTooLarge(bits)) return Failed(RowError::kLogitTooLarge, token.token);
    changed.push_back({token.token, bits});
  }

  std::vector<TokenBits> kept = LiveInOrder(changed);
  if (kept.empty()) return Failed(RowError::kNoLiveToken, 0);

  RowAnswer answer;
  DistanceOf distance = DistanceAt(ScaleAt(parameters, kept[0].bits));
  ReferenceChain chain(request, kept);
  if (parameters.greedy) {
    kept.resize(1);
  } else if (parameters.chain.empty()) {
    Filter(parameters, distance, &kept);
  } else {
    chain.Run();
    kept = chain.kept();
    distance = [shape = chain.shape()](u32 bits) { return ShapedDistance(bits, shape); };
    answer.temperature = chain.temperature();
  }
  const TokenBits winner = parameters.greedy ? kept[0] : Race(kept, distance, KeyOf(request.noise));

  answer.token = winner.token;
  if (!parameters.greedy) answer.sampler_state = chain.NextState(winner.bits);
  if (parameters.processed_logprob) {
    answer.kept = u32(kept.size());
    answer.processed = Describe(kept, distance, winner.token, parameters.processed_top);
    if (!parameters.chain.empty()) ShowProcessed(chain.shape(), &answer.processed);
  }
  if (parameters.raw_logprob) {
    const std::vector<TokenBits> live = LiveInOrder(raw);
    answer.raw = Describe(live, DistanceAt(UnitScale(live[0].bits)), winner.token, parameters.raw_top);
  }
  return answer;
}

}  // namespace sortition::law

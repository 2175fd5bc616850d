// The law, step by step in the order of LAW.md: every id is visited, everything is sorted, every token's noise is
// drawn.
#include "kernels/law/reference.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <numeric>
#include <optional>
#include <vector>

#include "kernels/check.h"
#include "kernels/check_row.h"
#include "kernels/law/chain.h"
#include "kernels/law/reference_chain.h"
#include "kernels/law/reference_verify.h"
#include "kernels/law/row_law.h"
#include "kernels/law/token_noise.h"

namespace sortition::law {
namespace {

using kernels::Distribution;
using kernels::LogitEdit;
using kernels::RowError;
using kernels::RowOutput;
using kernels::RowParameters;
using kernels::RowRequest;
using kernels::RowTask;
using kernels::TokenBits;

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

RowOutput Failed(RowError error, u32 id) {
  RowOutput answer;
  answer.error = error;
  answer.error_token = id;
  return answer;
}

// The bits after masks, bans, bias and penalties.
u32 ChangedBits(const RowRequest& request, const LogitEdit* edit, TokenBits token) {
  if (!IsAllowed(request, token.token)) return kMaskedBits;
  if (edit == nullptr) return token.bits;
  if ((edit->flags & LogitEdit::kBanned) != 0) return kMaskedBits;
  const bool repeated = (edit->flags & LogitEdit::kRepeated) != 0;
  const RowParameters& parameters = *request.parameters;
  return Changed(token.bits, edit->bias, repeated ? parameters.repetition : 0,
                 repeated ? parameters.inverse_repetition : 0, edit->penalty);
}

const LogitEdit* FindEdit(const RowRequest& request, u32 id) {
  const auto edit = std::ranges::lower_bound(request.edits, id, {}, &LogitEdit::token);
  return edit != request.edits.end() && edit->token == id ? &*edit : nullptr;
}

// The tokens that are not masked, first in order first; they are given by ascending id. Sorted by the digits of their
// keys, which leaves equals as they stand: comparisons would take most of a server's start.
std::vector<TokenBits> LiveInOrder(std::vector<TokenBits> tokens) {
  constexpr u32 kDigits = 1u << 11;
  std::erase_if(tokens, [](const TokenBits& token) { return token.bits == kMaskedBits; });
  std::vector<TokenBits> sorted(tokens.size());
  for (const u32 shift : {0u, 11u, 22u}) {
    const auto digit = [&](const TokenBits& token) { return (~Key(token.bits) >> shift) % kDigits; };
    std::array<size_t, kDigits> place = {};
    for (const TokenBits& token : tokens) ++place[digit(token)];
    std::exclusive_scan(place.begin(), place.end(), place.begin(), size_t{0});
    for (const TokenBits& token : tokens) sorted[place[digit(token)]++] = token;
    tokens.swap(sorted);
  }
  return tokens;
}

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
    const Bound bound = MakeBound(parameters.min_p_distance);
    std::erase_if(*tokens, [&](const TokenBits& token) { return !IsWithin(distance(token.bits), bound); });
  }
  if (parameters.top_k != 0 && parameters.top_k < tokens->size()) tokens->resize(parameters.top_k);
  if (parameters.top_p != 0) {
    const Threshold threshold = TopPThreshold(SumOfWeights(*tokens, distance), parameters.top_p);
    u64 sum = 0;
    size_t kept = 0;
    while (!Reaches(sum, threshold)) sum += Weight(distance((*tokens)[kept++].bits));
    tokens->resize(kept);
  }
}

TokenBits Race(const std::vector<TokenBits>& kept, const DistanceOf& distance, const DrawKey& key) {
  std::optional<TokenBits> winner;
  int64_t best = 0;
  for (const TokenBits& token : kept) {
    const u32 t = distance(token.bits);
    if (t == kDead) continue;
    const int64_t race = SignedRaceKey(t, TokenNoise(key, token.token));
    if (!winner || race < best || (race == best && token.token < winner->token)) {
      winner = token;
      best = race;
    }
  }
  SORTITION_CHECK(winner.has_value());
  return *winner;
}

// Where a token stands among `tokens`, which stand in order.
kernels::Place PlaceOf(const std::vector<TokenBits>& tokens, u32 token) {
  const auto at = std::find_if(tokens.begin(), tokens.end(), [&](const TokenBits& t) { return t.token == token; });
  if (at == tokens.end()) return {kMaskedBits, 0};
  return {at->bits, 1 + u32(at - tokens.begin())};
}

// `tokens` stand in order.
Distribution Describe(const std::vector<TokenBits>& tokens, const DistanceOf& distance, u32 token, u32 top,
                      std::span<const u32> requested) {
  Distribution distribution;
  distribution.max_bits = tokens[0].bits;
  distribution.weight_sum = SumOfWeights(tokens, distance);
  const kernels::Place chosen = PlaceOf(tokens, token);
  distribution.chosen = {token, chosen.bits};
  distribution.rank = chosen.rank;
  distribution.top.assign(tokens.begin(), tokens.begin() + std::min<size_t>(top, tokens.size()));
  for (const u32 id : requested) distribution.requested.push_back(PlaceOf(tokens, id));
  return distribution;
}

kernels::EntropySums SumEntropy(const std::vector<TokenBits>& tokens, const DistanceOf& distance) {
  kernels::EntropySums sums;
  for (const TokenBits& token : tokens) {
    const u32 t = distance(token.bits);
    sums.weights += Weight(t);
    sums.surplus += Surplus(Weight(t), t);
  }
  return sums;
}

// Fills in the outputs of a row beside its token.
void Describe(const RowRequest& request, const std::vector<TokenBits>& raw, const std::vector<TokenBits>& kept,
              const DistanceOf& distance, RowOutput* answer) {
  const RowParameters& parameters = *request.parameters;
  if (parameters.processed_logprob || parameters.kept_count || parameters.kept_tokens) answer->kept = u32(kept.size());
  if (parameters.processed_logprob) {
    answer->processed = Describe(kept, distance, answer->token, parameters.processed_top, request.requested);
  }
  if (parameters.entropy) answer->entropy = SumEntropy(kept, distance);
  if (parameters.kept_tokens) {
    answer->kept_tokens = kept;
    std::ranges::sort(answer->kept_tokens, {}, &TokenBits::token);
  }
  if (parameters.raw_logprob) {
    const std::vector<TokenBits> live = LiveInOrder(raw);
    answer->raw =
        Describe(live, DistanceAt(UnitScale(live[0].bits)), answer->token, parameters.raw_top, request.requested);
  }
}

}  // namespace

RowOutput SampleRowReference(const RowRequest& request) {
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
    const u32 bits = ChangedBits(request, FindEdit(request, token.token), token);
    if (IsTooLarge(bits)) return Failed(RowError::kLogitTooLarge, token.token);
    changed.push_back({token.token, bits});
  }

  std::vector<TokenBits> kept = LiveInOrder(changed);
  if (kept.empty()) return Failed(RowError::kNoLiveToken, 0);

  RowOutput answer;
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
    answer.temperature = chain.shape().dynamic;
  }

  switch (request.task) {
    case RowTask::kScore:
      answer.token = request.given;
      break;
    case RowTask::kVerify: {
      if (const DraftError error = CheckDraft(request); error.error != RowError::kNone) {
        return Failed(error.error, error.token);
      }
      const Verdict verdict = VerifyReference(request, kept, distance);
      answer.token = verdict.token.token;
      answer.accepted = verdict.accepted;
      break;
    }
    case RowTask::kDraw:
      answer.token = parameters.greedy ? kept[0].token : Race(kept, distance, KeyOf(request.noise)).token;
      break;
  }
  Describe(request, raw, kept, distance, &answer);
  if (!parameters.greedy && !parameters.chain.empty()) {
    answer.sampler_state = chain.NextState(answer.token);
    ShowProcessed(chain.shape(), &answer);
  }
  return answer;
}

}  // namespace sortition::law

// The law after the changes of logits, step by step in LAW.md's order. Sorts everything and draws every token's noise.
#include "kernels/law/reference_row.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <numeric>

#include "kernels/check.h"
#include "kernels/law/chain.h"
#include "kernels/law/race_place.h"
#include "kernels/law/reference_verify.h"
#include "kernels/law/row_law.h"
#include "kernels/law/token_noise.h"

namespace sortition::law {

using kernels::Distribution;
using kernels::LogitEdit;
using kernels::RowFault;
using kernels::RowOutput;
using kernels::RowParameters;
using kernels::RowRequest;
using kernels::RowRequiredReason;
using kernels::RowTask;
using kernels::TokenBits;

u32 SentBits(const RowRequest& request, u32 id) {
  const u32 bytes = kernels::ElementBytes(request.dtype);
  u32 element = 0;
  std::memcpy(&element, static_cast<const char*>(request.logits) + size_t{id} * bytes, bytes);
  return Widen(request.dtype, element);
}

RowFault SentError(u32 sent, const RowParameters& parameters) {
  if (IsNan(sent)) return parameters.mask_nan ? RowFault::kNone : RowFault::kNaN;
  return IsTooLarge(sent) ? RowFault::kLogitTooLarge : RowFault::kNone;
}

bool IsAllowed(const RowRequest& request, u32 id) {
  if (request.allowed_bits != nullptr && (request.allowed_bits[id / 32] >> (id % 32) & 1) == 0) return false;
  if (!request.has_allowed_tokens) return true;
  return std::binary_search(request.allowed_tokens.begin(), request.allowed_tokens.end(), id);
}

const LogitEdit* FindEdit(const RowRequest& request, u32 id) {
  const auto edit = std::ranges::lower_bound(request.edits, id, {}, &LogitEdit::token);
  return edit != request.edits.end() && edit->token == id ? &*edit : nullptr;
}

u32 ChangedBits(const RowRequest& request, TokenBits token) {
  const LogitEdit* const edit = FindEdit(request, token.token);
  if (!IsAllowed(request, token.token)) return kMaskedBits;
  if (edit == nullptr) return token.bits;
  if ((edit->flags & LogitEdit::kBanned) != 0) return kMaskedBits;
  const bool repeated = (edit->flags & LogitEdit::kRepeated) != 0;
  const RowParameters& parameters = *request.parameters;
  return Changed(token.bits, edit->bias, repeated ? parameters.repetition : 0,
                 repeated ? parameters.inverse_repetition : 0, edit->penalty);
}

// Sorts by the digits of the keys, which leaves equals as they stand: comparisons would take most of a server's start.
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

RowOutput FailedRow(RowFault error, u32 id) {
  RowOutput answer;
  answer.error = error;
  answer.error_token = id;
  return answer;
}

namespace {

using Undecided = std::optional<RowRequiredReason>;

u64 SumOfWeights(const std::vector<TokenBits>& tokens, const DistanceOf& distance) {
  u64 sum = 0;
  for (const TokenBits& token : tokens) sum += Weight(distance(token.bits));
  return sum;
}

DistanceOf DistanceAt(const Scale& scale) {
  return [scale](u32 bits) { return Distance(bits, scale); };
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
kernels::TokenPlace PlaceOf(const std::vector<TokenBits>& tokens, u32 token) {
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
  const kernels::TokenPlace chosen = PlaceOf(tokens, token);
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

// True if the answer's token and the requested ones stand in the list, with the first `top` tokens.
bool ListsAll(const Distribution& distribution, u32 top, const std::vector<TokenBits>& tokens) {
  const auto is_listed = [](const kernels::TokenPlace& place) { return place.rank != 0; };
  return distribution.rank != 0 && std::ranges::all_of(distribution.requested, is_listed) && top <= tokens.size();
}

// Describes the distribution before the changes.
Undecided DescribeRaw(const RowRequest& request, const ListedRow& row, RowOutput* answer) {
  const DistanceOf distance = DistanceAt(UnitScale(row.raw[0].bits));
  const u32 top = request.parameters->raw_top;
  answer->raw = Describe(row.raw, distance, answer->token, top, request.requested);
  if (!row.raw_rest) return {};
  if (!row.raw_rest->unit.all) return RowRequiredReason::kSums;
  answer->raw.weight_sum = *row.raw_rest->unit.all;
  return ListsAll(answer->raw, top, row.raw) ? Undecided() : RowRequiredReason::kRow;
}

// Describes the distribution after the changes and before the filters, and the kept tokens' mass in it.
Undecided DescribeTempered(const RowRequest& request, const ListedRow& row, const std::vector<TokenBits>& kept,
                           RowOutput* answer) {
  const RowParameters& parameters = *request.parameters;
  const Temperature temperature = TemperedConstants(parameters, answer->temperature);
  const DistanceOf distance = DistanceAt(ScaleOf(row.kept[0].bits, temperature));
  u64 sum = 0;
  if (!row.rest) {
    sum = SumOfWeights(row.kept, distance);
  } else if (const std::optional<u64> stated = WeightsOfRest(parameters, temperature, *row.rest).all) {
    sum = *stated;
  } else {
    return answer->temperature != 0 ? RowRequiredReason::kRow : RowRequiredReason::kSums;
  }
  if (parameters.kept_log_mass) answer->mass = {SumOfWeights(kept, distance), sum};
  if (!parameters.tempered_logprob) return {};
  const u32 top = parameters.tempered_top;
  answer->tempered = Describe(row.kept, distance, answer->token, top, request.requested);
  answer->tempered.weight_sum = sum;
  return !row.rest || ListsAll(answer->tempered, top, row.kept) ? Undecided() : RowRequiredReason::kRow;
}

// Fills in a row's outputs besides its token.
Undecided Describe(const RowRequest& request, const ListedRow& row, const ReferenceChain& chain,
                   const std::vector<TokenBits>& kept, const DistanceOf& distance, RowOutput* answer) {
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
  if (!parameters.greedy && !parameters.chain.empty()) {
    answer->sampler_state = chain.NextState(answer->token);
    ShowProcessed(chain.shape(), answer);
  }
  if (request.wants_race_place) answer->race = RacePlaceReference(kept, distance, request.noise, answer->token);
  if (parameters.tempered_logprob || parameters.kept_log_mass) {
    if (const Undecided undecided = DescribeTempered(request, row, kept, answer)) return undecided;
  }
  return parameters.raw_logprob ? DescribeRaw(request, row, answer) : std::nullopt;
}

// True if the answer needs neither the kept tokens nor the results of stages.
bool IgnoresKept(const RowRequest& request) {
  const RowParameters& parameters = *request.parameters;
  const auto chooses_temperature = [](const kernels::Stage& stage) {
    return stage.kind == kernels::StageKind::kDynamicTemperature;
  };
  if (std::ranges::any_of(parameters.chain, chooses_temperature)) return false;
  return request.task == RowTask::kScore && !parameters.processed_logprob && !parameters.kept_count &&
         !parameters.kept_tokens && !parameters.entropy && !parameters.kept_log_mass && !request.wants_race_place &&
         !kernels::KeepsSamplerState(parameters.chain);
}

}  // namespace

std::variant<RowOutput, RowRequiredReason> RunListed(const RowRequest& request, const ListedRow& row) {
  const RowParameters& parameters = *request.parameters;
  RowOutput answer;
  ReferenceChain chain(request, row.kept, row.rest);
  std::vector<TokenBits> kept = {row.kept[0]};
  DistanceOf distance = DistanceAt(ScaleAt(parameters, kept[0].bits));
  if (!parameters.greedy) {
    const Undecided undecided = chain.Run();
    if (undecided && !IgnoresKept(request)) return *undecided;
    if (chain.keeps_rest() && !IgnoresKept(request)) return RowRequiredReason::kRow;
    kept = chain.kept();
    distance = [shape = chain.shape()](u32 bits) { return ShapedDistance(bits, shape); };
    answer.temperature = chain.shape().dynamic;
  }

  switch (request.task) {
    case RowTask::kScore:
      answer.token = request.given;
      break;
    case RowTask::kVerify: {
      if (const DraftError error = CheckDraft(request); error.error != RowFault::kNone) {
        return FailedRow(error.error, error.token);
      }
      const Verdict verdict = VerifyReference(request, kept, distance);
      answer.token = verdict.token.token;
      answer.accepted = verdict.accepted;
      answer.survival = verdict.survival;
      break;
    }
    case RowTask::kDraw:
      answer.token = parameters.greedy ? kept[0].token : Race(kept, distance, ToDrawKey(request.noise)).token;
      break;
  }
  if (const Undecided undecided = Describe(request, row, chain, kept, distance, &answer)) return *undecided;
  return answer;
}

}  // namespace sortition::law

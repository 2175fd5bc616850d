// The race and the logprob of a short list of tokens, by the law's own functions.
#include "client/receipts/receipt_draw.h"

#include <algorithm>
#include <bit>

#include "absl/strings/str_cat.h"
#include "kernels/law/chain.h"
#include "kernels/law/law.h"
#include "kernels/law/logprob.h"
#include "kernels/law/row_law.h"
#include "kernels/law/token_noise.h"

namespace sortition::client {
namespace {

using kernels::StageKind;
using kernels::TokenBits;
using service::Receipt;
using service::ReceiptMethod;
using service::SequenceSpec;

constexpr uint32_t kMostTemperature = 0xc8000000;  // 200 in Q8.24

bool HasStage(const kernels::RowParameters& parameters, StageKind kind) {
  return std::ranges::any_of(parameters.chain, [&](const kernels::Stage& stage) { return stage.kind == kind; });
}

bool IsInfinite(uint32_t bits) { return (bits >> 23 & 255) == 255; }

// Returns why no row has these kept tokens, or an empty text.
std::string WhyNot(const SequenceSpec& spec, const kernels::RowParameters& parameters, const Receipt& receipt,
                   uint32_t first_bits) {
  if (receipt.token >= spec.live_vocabulary) return "the token is not in the live vocabulary";
  if (receipt.kept.back().token >= spec.live_vocabulary) return "a kept token is not in the live vocabulary";
  for (const TokenBits& token : receipt.kept) {
    if (token.bits != law::kMaskedBits && IsInfinite(token.bits)) {
      return absl::StrCat("the logit of kept token ", token.token, " is no number");
    }
  }
  if (IsInfinite(first_bits) || law::IsTooLarge(first_bits & 0x7fffffff)) return "the largest kept logit is no logit";
  if (HasStage(parameters, StageKind::kDynamicTemperature)) {
    if (receipt.temperature < law::kLeastTemperature || receipt.temperature > kMostTemperature) {
      return "the temperature is out of range";
    }
  } else if (receipt.temperature != 0) {
    return "a temperature is stated, and the parameters have no dynamic one";
  }
  if (parameters.greedy != (receipt.method == ReceiptMethod::kGreedy)) {
    return "the method is not that of the temperature";
  }
  if (parameters.greedy && receipt.kept_count != 1) return "a greedy row keeps one token";
  return "";
}

uint32_t Race(const SequenceSpec& spec, uint64_t seed, const Receipt& receipt, const law::Scale& scale) {
  const law::DrawKey key = law::ToDrawKey({seed, receipt.position, spec.choice_index | receipt.draw_salt << 16});
  std::optional<int64_t> best;
  uint32_t winner = receipt.kept.front().token;
  for (const TokenBits& token : receipt.kept) {
    const uint32_t t = law::Distance(token.bits, scale);
    if (t == law::kDead) continue;
    const int64_t race = law::SignedRaceKey(t, law::TokenNoise(key, token.token));
    if (best && race >= *best) continue;  // ties go to the lower id
    best = race;
    winner = token.token;
  }
  return winner;
}

}  // namespace

bool IsAdapted(const SequenceSpec& spec) { return HasStage(spec.parameters, StageKind::kAdaptiveP); }

RedrawnToken Redraw(const SequenceSpec& spec, std::optional<uint64_t> seed, const Receipt& receipt) {
  RedrawnToken redrawn;
  if (receipt.phase > spec.history.phases.size()) {
    redrawn.why_not = "the parameters have no such phase";
    return redrawn;
  }
  const kernels::RowParameters& parameters = spec.Within(receipt.phase).parameters;
  const auto key_of = [](const TokenBits& token) { return law::Key(token.bits); };
  const uint32_t first = std::ranges::max_element(receipt.kept, {}, key_of)->bits;
  redrawn.why_not = WhyNot(spec, parameters, receipt, first);
  if (!redrawn.why_not.empty()) return redrawn;
  const auto kept = std::ranges::lower_bound(receipt.kept, receipt.token, {}, &TokenBits::token);
  redrawn.is_kept = kept != receipt.kept.end() && kept->token == receipt.token;
  if (IsAdapted(spec)) return redrawn;

  kernels::RowOutput output;
  output.temperature = receipt.temperature;
  output.processed.max_bits = first;
  const law::Scale scale = law::ProcessedScale(parameters, output);
  for (const TokenBits& token : receipt.kept) {
    output.processed.weight_sum += law::Weight(law::Distance(token.bits, scale));
  }
  if (redrawn.is_kept) {
    const double temperature = law::ProcessedTemperature(parameters, output);
    redrawn.logprob_bits = std::bit_cast<uint32_t>(law::Logprob(output.processed, kept->bits, temperature));
  }
  if (receipt.method == ReceiptMethod::kGreedy) redrawn.token = receipt.kept.front().token;
  if (receipt.method == ReceiptMethod::kRace && seed) redrawn.token = Race(spec, *seed, receipt, scale);
  return redrawn;
}

}  // namespace sortition::client

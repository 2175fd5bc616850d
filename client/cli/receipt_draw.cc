// The race and the logprob of a short list of tokens, by the law's own functions.
#include "client/cli/receipt_draw.h"

#include <algorithm>
#include <bit>

#include "absl/strings/str_cat.h"
#include "kernels/law/chain.h"
#include "kernels/law/law.h"
#include "kernels/law/logprob.h"
#include "kernels/law/row_law.h"
#include "kernels/law/token_noise.h"

namespace sortition::cli {
namespace {

using kernels::StageKind;
using kernels::TokenBits;
using service::Receipt;
using service::ReceiptMethod;
using service::SequenceSpec;

constexpr uint32_t kMostTemperature = 0xc8000000;  // 200 in Q8.24

bool HasStage(const SequenceSpec& spec, StageKind kind) {
  return std::ranges::any_of(spec.parameters.chain, [&](const kernels::Stage& stage) { return stage.kind == kind; });
}

bool IsInfinite(uint32_t bits) { return (bits >> 23 & 255) == 255; }

bool IsKept(const SequenceSpec& spec, const Receipt& receipt) {
  const auto kept = std::ranges::lower_bound(receipt.kept, receipt.token, {}, &TokenBits::token);
  return kept != receipt.kept.end() && kept->token == receipt.token && receipt.kept.back().token < spec.live_vocabulary;
}

// Returns why no row has kept tokens of these bits, or an empty text.
std::string WhyNoRow(const SequenceSpec& spec, const Receipt& receipt, uint32_t first_bits) {
  for (const TokenBits& token : receipt.kept) {
    if (token.bits != law::kMaskedBits && IsInfinite(token.bits)) {
      return absl::StrCat("the logit of kept token ", token.token, " is no number");
    }
  }
  if (IsInfinite(first_bits) || law::IsTooLarge(first_bits & 0x7fffffff)) return "the largest kept logit is no logit";
  const bool is_dynamic = HasStage(spec, StageKind::kDynamicTemperature);
  if (is_dynamic ? receipt.temperature < law::kLeastTemperature || receipt.temperature > kMostTemperature
                 : receipt.temperature != 0) {
    return "the parameters do not give the temperature that is stated";
  }
  return "";
}

uint32_t Race(const SequenceSpec& spec, uint64_t seed, const Receipt& receipt, const law::Scale& scale) {
  const law::DrawKey key = law::KeyOf({seed, receipt.position, spec.choice_index | receipt.draw_salt << 16});
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

bool IsAdapted(const SequenceSpec& spec) { return HasStage(spec, StageKind::kAdaptiveP); }

RedrawnToken Redraw(const SequenceSpec& spec, std::optional<uint64_t> seed, const Receipt& receipt) {
  RedrawnToken redrawn;
  if (!IsKept(spec, receipt)) {
    redrawn.wrong_token =
        absl::StrCat("token ", receipt.token, " is not kept, or kept tokens are not in the vocabulary");
    return redrawn;
  }
  const auto key_of = [](const TokenBits& token) { return law::Key(token.bits); };
  const uint32_t first = std::ranges::max_element(receipt.kept, {}, key_of)->bits;
  redrawn.wrong_logprob = WhyNoRow(spec, receipt, first);
  if (!redrawn.wrong_logprob.empty()) return redrawn;

  kernels::RowOutput output;
  output.temperature = receipt.temperature;
  output.processed.max_bits = first;
  const law::Scale scale = law::ProcessedScale(spec.parameters, output);
  const bool is_greedy = receipt.method == ReceiptMethod::kGreedy;
  std::optional<uint32_t> token;
  if (is_greedy || spec.parameters.greedy) {
    token = receipt.kept.front().token;
    if (!is_greedy || !spec.parameters.greedy || receipt.kept_count != 1) {
      redrawn.wrong_token = "the first token in order is taken at temperature 0, and there alone";
    }
  } else if (receipt.method == ReceiptMethod::kRace && seed && !IsAdapted(spec)) {
    token = Race(spec, *seed, receipt, scale);
  }
  redrawn.is_drawn = token.has_value();
  if (token && *token != receipt.token && redrawn.wrong_token.empty()) {
    redrawn.wrong_token = absl::StrCat("position ", receipt.position, ": token ", receipt.token,
                                       " is stated, the kept tokens and the seed give ", *token);
  }
  if (IsAdapted(spec)) return redrawn;
  uint32_t logprob_bits = 0;
  if (!is_greedy) {
    for (const TokenBits& kept : receipt.kept) {
      output.processed.weight_sum += law::Weight(law::Distance(kept.bits, scale));
    }
    const uint32_t bits = std::ranges::lower_bound(receipt.kept, receipt.token, {}, &TokenBits::token)->bits;
    const double temperature = law::ProcessedTemperature(spec.parameters, output);
    logprob_bits = std::bit_cast<uint32_t>(law::Logprob(output.processed, bits, temperature));
  }
  if (logprob_bits != receipt.logprob_bits) {
    redrawn.wrong_logprob = absl::StrCat("position ", receipt.position, ": the kept tokens give another logprob");
  }
  return redrawn;
}

}  // namespace sortition::cli

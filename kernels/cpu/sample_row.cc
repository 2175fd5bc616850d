// A row's way: read, change, filter, draw, describe.
#include "kernels/cpu/sample_row.h"

#include <algorithm>

#include "kernels/check_row.h"
#include "kernels/cpu/chain.h"
#include "kernels/cpu/change_row.h"
#include "kernels/cpu/describe.h"
#include "kernels/cpu/draw.h"
#include "kernels/cpu/filter.h"
#include "kernels/cpu/read_row.h"
#include "kernels/cpu/select.h"
#include "kernels/cpu/sums.h"
#include "kernels/law/chain.h"
#include "kernels/law/row_law.h"

namespace sortition::kernels::cpu {
namespace {

// The token as it was sent.
Candidate Sent(const RowRequest& request, uint32_t token) {
  return Candidate::Of(law::Key(law::Canonical(SentBits(request, token))), token);
}

// The token as the changes left it.
Candidate Changed(const RowRequest& request, const Row& row, uint32_t token) {
  const auto patched = std::ranges::lower_bound(row.patched, token, {}, &Candidate::token);
  return patched != row.patched.end() && patched->token() == token ? *patched : Sent(request, token);
}

void SampleGreedy(const Kernels& kernels, const RowParameters& parameters, const Row& row, RowAnswer* answer) {
  const Candidate chosen = First(kernels, row);
  answer->token = chosen.token();
  if (!parameters.processed_logprob) return;
  answer->kept = 1;
  DescribePointMass(chosen, parameters.processed_top, &answer->processed);
}

void SampleDrawn(const Kernels& kernels, const RowRequest& request, const Row& row, Scratch* scratch,
                 RowAnswer* answer) {
  const RowParameters& parameters = *request.parameters;
  const RowScale scale = ScaleOf(parameters, row.max_key);
  const Kept kept = Filter(kernels, request, row, scale, scratch);
  answer->token = Draw(kernels, row, scale, kept, law::KeyOf(request.noise), nullptr, scratch);
  if (!parameters.processed_logprob) return;
  answer->kept = kept.listed.empty() ? NumberOfTokens(kernels, row, kept.last, scratch) : uint32_t(kept.listed.size());
  Describe(kernels, row, scale, kept, Changed(request, row, answer->token), parameters.processed_top, scratch,
           &answer->processed);
}

// What the kept tokens weigh at the distances of adaptive-p.
uint64_t AdaptedSum(const Kernels& kernels, const Chain& chain, const Kept& kept, Scratch* scratch) {
  std::span<const Candidate> tokens = kept.listed;
  if (tokens.empty()) tokens = CollectNotAfter(kernels, chain.row(), kept.last, scratch, &scratch->leading);
  uint64_t sum = 0;
  for (const Candidate& token : tokens) {
    sum += law::Weight(law::ShapedDistance(law::KeyBits(token.key()), chain.shape()));
  }
  return sum;
}

void SampleChained(const Kernels& kernels, const RowRequest& request, const Row& changed, Scratch* scratch,
                   RowAnswer* answer) {
  Chain chain(kernels, request, changed, scratch);
  chain.Run();
  const Row& row = chain.row();
  const Kept kept = chain.kept();
  const law::Shape* const adapted = chain.shape().is_adapted ? &chain.shape() : nullptr;
  answer->token = Draw(kernels, row, chain.scale(), kept, law::KeyOf(request.noise), adapted, scratch);
  answer->temperature = chain.temperature();
  const Candidate chosen = Changed(request, row, answer->token);
  answer->sampler_state = chain.NextState(chosen.key());
  if (!request.parameters->processed_logprob) return;
  answer->kept = kept.listed.empty() ? NumberOfTokens(kernels, row, kept.last, scratch) : uint32_t(kept.listed.size());
  Describe(kernels, row, chain.scale(), kept, chosen, request.parameters->processed_top, scratch, &answer->processed);
  if (adapted != nullptr) answer->processed.weight_sum = AdaptedSum(kernels, chain, kept, scratch);
  law::ShowProcessed(chain.shape(), &answer->processed);
}

}  // namespace

void SampleRow(const Target& target, const RowRequest& request, Scratch* scratch, RowAnswer* answer) {
  CheckRow(request);
  const Kernels& kernels = target.kernels;
  const RowParameters& parameters = *request.parameters;
  *answer = RowAnswer();

  Row raw;
  Row row;
  if (!ReadRow(kernels, request, scratch, &raw, answer)) return;
  if (!ChangeRow(kernels, request, raw, scratch, &row, answer)) return;
  if (row.max_key == 0) {
    answer->error = RowError::kNoLiveToken;
    return;
  }
  if (parameters.greedy) {
    SampleGreedy(kernels, parameters, row, answer);
  } else if (!parameters.chain.empty()) {
    SampleChained(kernels, request, row, scratch, answer);
  } else {
    SampleDrawn(kernels, request, row, scratch, answer);
  }
  if (parameters.raw_logprob) {
    const RowScale scale = ScaleOf(RowParameters(), raw.max_key);
    Describe(kernels, raw, scale, Kept(), Sent(request, answer->token), parameters.raw_top, scratch, &answer->raw);
  }
}

void SampleRow(const RowRequest& request, Scratch* scratch, RowAnswer* answer) {
  SampleRow(BestTarget(), request, scratch, answer);
}

}  // namespace sortition::kernels::cpu

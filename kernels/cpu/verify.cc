// Rejection of drafts.
#include "kernels/cpu/verify.h"

#include "kernels/check.h"
#include "kernels/cpu/race.h"
#include "kernels/cpu/select.h"
#include "kernels/cpu/sums.h"
#include "kernels/law/block.h"
#include "kernels/law/draft_probability.h"
#include "kernels/law/row_law.h"

namespace sortition::kernels::cpu {
namespace {

uint64_t WeightOf(Candidate candidate, const RowScale& scale) {
  return law::Weight(DistanceOfKey(candidate.key(), scale));
}

uint64_t SumOfKept(const Kernels& kernels, const Row& row, const RowScale& scale, const Kept& kept, Scratch* scratch) {
  if (kept.listed.empty()) return SumOfWeights(kernels, row, kept.last, scale, scratch);
  return WeighList(kernels, kept.listed, scale, scratch);
}

// max(0, w - q S)
class ResidualOf : public Reweigh {
 public:
  ResidualOf(const RowRequest& request, uint64_t sum) : request_(request), sum_(sum) {}
  uint64_t operator()(uint32_t token, uint64_t weight) const override {
    return law::Residual(weight, law::DraftWeight(law::DraftBits(request_, token), sum_));
  }

 private:
  const RowRequest& request_;
  const uint64_t sum_;
};

// max(0, p w - q S)
class BlockResidualOf : public Reweigh {
 public:
  BlockResidualOf(const RowRequest& request, uint64_t sum) : request_(request), sum_(sum) {}
  uint64_t operator()(uint32_t token, uint64_t weight) const override {
    return law::BlockResidual(weight, law::DraftWeight(law::DraftBits(request_, token), sum_), request_.survival);
  }

 private:
  const RowRequest& request_;
  const uint64_t sum_;
};

class AllOf : public Reweigh {
 public:
  uint64_t operator()(uint32_t, uint64_t weight) const override { return weight; }
};

// The draw among what `reweigh` leaves; among all where roundings leave nothing.
uint32_t DrawLeft(const Kernels& kernels, const Row& row, const RowScale& scale, const Kept& kept,
                  const law::DrawKey& key, const Reweigh& reweigh, Scratch* scratch) {
  const uint32_t token = DrawReweighed(kernels, row, scale, kept, key, reweigh, scratch);
  if (token != RowRequest::kNoToken) return token;
  const uint32_t any = DrawReweighed(kernels, row, scale, kept, key, AllOf(), scratch);
  SORTITION_CHECK(any != RowRequest::kNoToken);
  return any;
}

// The sum of law::Shared over the kept tokens. Others than `support` share nothing, if it is given.
uint64_t SumOfShared(const Kernels& kernels, const RowRequest& request, const Row& row, const RowScale& scale,
                     const Kept& kept, std::span<const Candidate> support, uint64_t sum, Scratch* scratch) {
  std::span<const Candidate> tokens = support;
  if (tokens.empty()) tokens = kept.listed;
  if (tokens.empty()) tokens = CollectNotAfter(kernels, row, kept.last, scratch, &scratch->leading);
  uint64_t shared = 0;
  for (const Candidate& token : tokens) {
    if (token.key() == 0 || !kept.Has(token)) continue;
    const uint64_t draft_weight = law::DraftWeight(law::DraftBits(request, token.token()), sum);
    if (draft_weight != 0) shared += law::Shared(WeightOf(token, scale), draft_weight, request.survival);
  }
  return shared;
}

bool Fail(RowError error, uint32_t token, RowOutput* answer) {
  answer->error = error;
  answer->error_token = token;
  return false;
}

}  // namespace

bool CheckDraft(const Kernels& kernels, const RowRequest& request, RowOutput* answer) {
  const DraftDistribution& draft = request.draft;
  if (draft.form != DraftDistribution::Form::kDense) return true;
  const uint32_t whole = request.live_vocabulary / kDraftStep * kDraftStep;
  bool suspect = false;
  uint64_t units = kernels.SumProbabilities(static_cast<const std::byte*>(draft.dense), draft.dtype, whole, &suspect);
  // The rest, and of a row with something wrong in it all, is looked at one by one.
  for (uint32_t id = suspect ? 0 : whole; id < request.live_vocabulary; ++id) {
    const uint32_t q = law::DraftBits(request, id);
    if (!law::IsProbability(q)) return Fail(RowError::kDraftNoProbability, id, answer);
    units += law::ProbabilityUnits(q);
  }
  SORTITION_CHECK(!suspect);
  if (!law::IsWhole(units)) return Fail(RowError::kDraftSum, 0, answer);
  const uint32_t own = law::DraftBits(request, request.given) & 0x7fffffffu;
  return own != 0 || Fail(RowError::kDraftImpossible, request.given, answer);
}

void VerifyBlock(const Kernels& kernels, const RowRequest& request, const Row& row, const RowScale& scale,
                 const Kept& kept, Candidate draft, std::span<const Candidate> support, Scratch* scratch,
                 RowOutput* answer) {
  const law::DrawKey key = law::KeyOf(request.noise);
  const law::PhiloxWords words = law::BlockWords(key);
  const uint64_t sum = SumOfKept(kernels, row, scale, kept, scratch);
  if (draft.key() != 0 && kept.Has(draft)) {
    const uint64_t draft_weight = law::DraftWeight(law::DraftBits(request, request.given), sum);
    answer->survival = law::NextSurvival(request.survival, WeightOf(draft, scale), draft_weight);
  }
  const uint64_t shared = SumOfShared(kernels, request, row, scale, kept, support, sum, scratch);
  answer->accepted = law::MayEnd(law::WordOf(words, 1), sum, shared, request.survival);
  answer->token =
      DrawLeft(kernels, row, scale, kept, law::ResidualKey(words, key), BlockResidualOf(request, sum), scratch);
}

void Verify(const Kernels& kernels, const RowRequest& request, const Row& row, const RowScale& scale, const Kept& kept,
            Candidate draft, Scratch* scratch, RowOutput* answer) {
  const law::DrawKey key = law::KeyOf(request.noise);
  const law::PhiloxWords words = law::NoiseWords(0, law::kVerifyTag, key);
  const uint64_t sum = SumOfKept(kernels, row, scale, kept, scratch);
  if (draft.key() != 0 && kept.Has(draft)) {
    const uint64_t draft_weight = law::DraftWeight(law::DraftBits(request, request.given), sum);
    answer->accepted = law::Accepts(law::WordOf(words, 1), WeightOf(draft, scale), draft_weight);
  }
  answer->token = request.given;
  if (answer->accepted) return;
  answer->token = DrawLeft(kernels, row, scale, kept, law::ResidualKey(words, key), ResidualOf(request, sum), scratch);
}

}  // namespace sortition::kernels::cpu

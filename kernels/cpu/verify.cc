// Rejection of drafts.
#include "kernels/cpu/verify.h"

#include <algorithm>
#include <vector>

#include "kernels/check.h"
#include "kernels/cpu/race.h"
#include "kernels/cpu/select.h"
#include "kernels/cpu/sums.h"
#include "kernels/law/block.h"
#include "kernels/law/draft_probability.h"
#include "kernels/law/rounds.h"
#include "kernels/law/row_law.h"

namespace sortition::kernels::cpu {
namespace {

uint64_t WeightOf(Candidate candidate, const RowScale& scale) {
  return law::Weight(DistanceOfKey(candidate.key(), scale));
}

uint64_t SumOfKept(const Kernels& kernels, const RowView& row, const RowScale& scale, const Kept& kept,
                   Scratch* scratch) {
  if (kept.listed.empty()) return SumOfWeights(kernels, row, kept.last, scale, scratch);
  return WeighList(kernels, kept.listed, scale, scratch);
}

// A kept token and the rest of its weight.
struct TokenWeight {
  uint32_t token;
  uint64_t weight;
};

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

// Draws among the weights that `reweigh` leaves, or among all weights if rounding leaves none.
uint32_t DrawLeft(const Kernels& kernels, const RowView& row, const RowScale& scale, const Kept& kept,
                  const law::DrawKey& key, const Reweigh& reweigh, Scratch* scratch) {
  const uint32_t token = DrawReweighed(kernels, row, scale, kept, key, reweigh, scratch);
  if (token != RowRequest::kNoToken) return token;
  const uint32_t any = DrawReweighed(kernels, row, scale, kept, key, AllOf(), scratch);
  SORTITION_CHECK(any != RowRequest::kNoToken);
  return any;
}

// Tokens to which both the drafter and the target may give weight: `support` if given, else the kept ones.
std::span<const Candidate> TokensToShare(const Kernels& kernels, const RowView& row, const Kept& kept,
                                         std::span<const Candidate> support, Scratch* scratch) {
  if (!support.empty()) return support;
  if (!kept.listed.empty()) return kept.listed;
  return CollectNotAfter(kernels, row, kept.last, scratch, &scratch->leading);
}

// The sum of law::Shared over the kept tokens.
uint64_t SumOfShared(const Kernels& kernels, const RowRequest& request, const RowView& row, const RowScale& scale,
                     const Kept& kept, std::span<const Candidate> support, uint64_t sum, Scratch* scratch) {
  uint64_t shared = 0;
  for (const Candidate& token : TokensToShare(kernels, row, kept, support, scratch)) {
    if (token.key() == 0 || !kept.Has(token)) continue;
    const uint64_t draft_weight = law::DraftWeight(law::DraftBits(request, token.token()), sum);
    if (draft_weight != 0) shared += law::Shared(WeightOf(token, scale), draft_weight, request.survival);
  }
  return shared;
}

// The rounds that took something from the weights. Returns the rest of a weight after them.
class Rounds : public Reweigh {
 public:
  explicit Rounds(const RowRequest& request) : request_(request) {}

  // Returns the drafter of the next round. `sum` is the sum of the weights that are left.
  law::RoundDrafter Next(uint64_t sum) const {
    if (request_.draft.with_replacement || tried_.empty()) return law::RoundDrafter::Whole(sum);
    uint32_t largest = 0;
    ForEachLeft([&](uint32_t q) { largest = std::max(largest, law::ProbabilityExponent(q)); });
    uint64_t units = 0;
    ForEachLeft([&](uint32_t q) { units += law::LeftUnits(q, largest); });
    return largest == 0 ? law::RoundDrafter::Nothing() : law::RoundDrafter::Left(sum, largest, units);
  }
  // Returns the drafter's weight of a token in the next round.
  uint64_t WeightNow(const law::RoundDrafter& drafter, uint32_t token) const {
    return IsGone(token, tried_.size()) ? 0 : drafter.Weight(law::DraftBits(request_, token));
  }
  // Ends a round. `takes`: it takes the drafter's weights; a round that would leave nothing does not.
  void End(const law::RoundDrafter& drafter, uint32_t draft, bool takes) {
    if (takes) taken_.push_back({drafter, tried_.size()});
    tried_.push_back(draft);
  }

  uint64_t operator()(uint32_t token, uint64_t weight) const override {
    const uint32_t q = law::DraftBits(request_, token);
    for (const Taken& round : taken_) {
      if (!IsGone(token, round.tried)) weight = law::Residual(weight, round.drafter.Weight(q));
    }
    return weight;
  }

 private:
  struct Taken {
    law::RoundDrafter drafter;
    size_t tried;  // drafts before the round
  };

  // Returns true if the token is one of the first `tried` drafts and the drafter cannot draw it again.
  bool IsGone(uint32_t token, size_t tried) const {
    const std::span<const uint32_t> gone = std::span(tried_).first(tried);
    return !request_.draft.with_replacement && std::ranges::find(gone, token) != gone.end();
  }
  // Calls take(f32 bits) for each token of the next round that may have a probability.
  template <typename Take>
  void ForEachLeft(Take take) const {
    const bool is_listed = request_.draft.form == DraftDistribution::Form::kSparse;
    const std::span<const uint32_t> listed = request_.draft.sparse_tokens;
    const uint32_t count = is_listed ? uint32_t(listed.size()) : request_.live_vocabulary;
    for (uint32_t i = 0; i < count; ++i) {
      const uint32_t token = is_listed ? listed[i] : i;
      if (!IsGone(token, tried_.size())) take(law::DraftBits(request_, token));
    }
  }

  const RowRequest& request_;
  std::vector<Taken> taken_;
  std::vector<uint32_t> tried_;
};

bool Fail(RowFault error, uint32_t token, RowOutput* answer) {
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
  // Looks at the rest one by one; at the whole row if an element of it is suspect.
  for (uint32_t id = suspect ? 0 : whole; id < request.live_vocabulary; ++id) {
    const uint32_t q = law::DraftBits(request, id);
    if (!law::IsProbability(q)) return Fail(RowFault::kDraftNoProbability, id, answer);
    units += law::ProbabilityUnits(q);
  }
  SORTITION_CHECK(!suspect);
  if (!law::IsWhole(units)) return Fail(RowFault::kDraftSum, 0, answer);
  const auto is_possible = [&](uint32_t draft) { return (law::DraftBits(request, draft) & 0x7fffffffu) != 0; };
  if (!is_possible(request.given)) return Fail(RowFault::kDraftImpossible, request.given, answer);
  const auto rival = std::ranges::find_if_not(request.rivals, is_possible);
  return rival == request.rivals.end() || Fail(RowFault::kDraftImpossible, *rival, answer);
}

void VerifyBlock(const Kernels& kernels, const RowRequest& request, const RowView& row, const RowScale& scale,
                 const Kept& kept, Candidate draft, std::span<const Candidate> support, Scratch* scratch,
                 RowOutput* answer) {
  const law::DrawKey key = law::ToDrawKey(request.noise);
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

void VerifyRounds(const Kernels& kernels, const RowRequest& request, const RowView& row, const RowScale& scale,
                  const Kept& kept, std::span<const Candidate> support, Scratch* scratch, RowOutput* answer) {
  const law::DrawKey key = law::ToDrawKey(request.noise);
  uint64_t sum = SumOfKept(kernels, row, scale, kept, scratch);
  Rounds rounds(request);
  // The kept tokens that rounds can take weight from, with the rest of their weights. Others keep theirs.
  std::vector<TokenWeight> shared;
  for (const Candidate& token : TokensToShare(kernels, row, kept, support, scratch)) {
    if (token.key() != 0 && kept.Has(token)) shared.push_back({token.token(), WeightOf(token, scale)});
  }
  for (uint32_t round = 0; round <= request.rivals.size(); ++round) {
    const uint32_t draft = round == 0 ? request.given : request.rivals[round - 1];
    const law::RoundDrafter drafter = rounds.Next(sum);
    const auto its_own = std::ranges::find(shared, draft, &TokenWeight::token);
    const uint64_t word = law::WordOf(law::RoundWords(round, key), 1);
    answer->token = draft;
    if (its_own != shared.end() && law::Accepts(word, its_own->weight, rounds.WeightNow(drafter, draft))) {
      answer->accepted = true;
      return;
    }
    uint64_t taken = 0;
    for (const TokenWeight& token : shared) taken += std::min(token.weight, rounds.WeightNow(drafter, token.token));
    const bool takes = taken < sum;  // a round may not take everything
    if (takes) {
      for (TokenWeight& token : shared) {
        token.weight = law::Residual(token.weight, rounds.WeightNow(drafter, token.token));
      }
      sum -= taken;
    }
    rounds.End(drafter, draft, takes);
  }
  const law::DrawKey last = law::ResidualKey(law::RoundWords(0, key), key);
  answer->token = DrawReweighed(kernels, row, scale, kept, last, rounds, scratch);
  SORTITION_CHECK(answer->token != RowRequest::kNoToken);
}

bool Passes(const RowRequest& request, const RowScale& scale, Candidate draft, uint64_t sum) {
  const law::PhiloxWords words = law::NoiseWords(0, law::kVerifyTag, law::ToDrawKey(request.noise));
  const uint64_t draft_weight = law::DraftWeight(law::DraftBits(request, request.given), sum);
  return law::Accepts(law::WordOf(words, 1), WeightOf(draft, scale), draft_weight);
}

void Verify(const Kernels& kernels, const RowRequest& request, const RowView& row, const RowScale& scale,
            const Kept& kept, Candidate draft, Scratch* scratch, RowOutput* answer) {
  const uint64_t sum = SumOfKept(kernels, row, scale, kept, scratch);
  answer->accepted = draft.key() != 0 && kept.Has(draft) && Passes(request, scale, draft, sum);
  answer->token = request.given;
  if (answer->accepted) return;
  const law::DrawKey key = law::ToDrawKey(request.noise);
  const law::DrawKey residual = law::ResidualKey(law::NoiseWords(0, law::kVerifyTag, key), key);
  answer->token = DrawLeft(kernels, row, scale, kept, residual, ResidualOf(request, sum), scratch);
}

}  // namespace sortition::kernels::cpu

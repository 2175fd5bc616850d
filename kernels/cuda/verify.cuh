// The test of a drafted token, and the draw in its place (kernels/law/SPECULATION.md).
#pragma once

#include "kernels/cuda/answer.cuh"
#include "kernels/cuda/place.cuh"
#include "kernels/cuda/race.cuh"

namespace sortition::kernels::cuda {

// Returns the token that the row scores or verifies.
__device__ inline u32 GivenOf(const ChainedInput& ask) { return ask.given_at != nullptr ? *ask.given_at : ask.given; }

__device__ inline RowTask TaskOf(const RowInput& input) {
  const ChainedInput& ask = *input.chained;
  return ask.task == RowTask::kDraw || GivenOf(ask) < input.vocabulary ? ask.task : RowTask::kDraw;
}

// f32 bits of the drafter's probability of `token`.
__device__ inline u32 DraftBits(const ChainedInput& ask, u32 token) {
  const DraftInput& draft = ask.draft;
  if (draft.form == DraftDistribution::Form::kCertain) return token == GivenOf(ask) ? 0x3f800000u : 0;
  if (draft.form == DraftDistribution::Form::kDense) return BitsAt(draft.dense, draft.dtype, token);
  u32 low = 0;
  u32 high = draft.sparse_count;
  while (low < high) {
    const u32 middle = low + (high - low) / 2;
    if (draft.sparse_tokens[middle] < token) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return low < draft.sparse_count && draft.sparse_tokens[low] == token ? draft.sparse_bits[low] : 0;
}

// Fails the row if its drafter's numbers are no probabilities, or if the draft's is 0.
__device__ __noinline__ bool FailsByDraft(const Row& row, const BatchView& batch) {
  const RowInput& input = OnChip().input;
  const ChainedInput& ask = *input.chained;
  if (TaskOf(input) != RowTask::kVerify || ask.draft.form != DraftDistribution::Form::kDense) return false;
  u32 lowest = kNone;
  u64 units = 0;
  for (u32 token = Thread(); token < input.vocabulary; token += kThreads) {
    const u32 q = DraftBits(ask, token);
    if (IsProbability(q)) {
      units += ProbabilityUnits(q);
    } else {
      lowest = min(lowest, token);
    }
  }
  lowest = ~MaxOfAll(~lowest);
  units = SumOfAll(units);
  if (lowest != kNone) {
    Fail(row, batch, RowFault::kDraftNoProbability, lowest);
  } else if (!IsWhole(units)) {
    Fail(row, batch, RowFault::kDraftSum, 0);
  } else if ((DraftBits(ask, GivenOf(ask)) & 0x7fffffffu) == 0) {
    Fail(row, batch, RowFault::kDraftImpossible, GivenOf(ask));
  } else {
    return false;
  }
  return true;
}

// Draws among the kept tokens' weights less the drafter's share, or among the whole weights. `sum`: the whole weights'.
struct ByResidual {
  const Shape shape;
  const ChainedInput& ask;
  u64 sum;
  bool leaves_all;
  static constexpr bool kIsInline = false;

  __device__ i64 LagOf(u64 rank) const {
    u64 weight = WeightOf(KeyOfRank(rank), shape);
    if (!leaves_all) weight = Residual(weight, DraftWeight(DraftBits(ask, TokenOfRank(rank)), sum));
    return LagOfWeight(weight);
  }
  __device__ i64 LeastLagOf(u32 key) const { return LagOfWeight(LargestWeight(key, shape)); }

 private:
  __device__ static i64 LagOfWeight(u64 weight) { return weight == 0 ? kNever : i64(ResidualLag(weight)); }
};

// Returns the token of a row that verifies a draft. `sum` is the sum of the kept tokens' weights.
__device__ __noinline__ u32 VerifiedToken(const Chain& chain, u64 sum, bool* accepted) {
  const Row& row = chain.row;
  const ChainedInput& ask = *OnChip().input.chained;
  const DrawKey key = KeyOfDraw(OnChip().input);
  const PhiloxWords words = NoiseWords(0, kVerifyTag, key);
  const u32 given = GivenOf(ask);
  const u32 draft = KeyIn(row, chain.view, given);
  const u64 draft_weight = DraftWeight(DraftBits(ask, given), sum);
  *accepted = draft != 0 && IsKept(chain, RankOf(draft, given)) &&
              Accepts(WordOf(words, 1), WeightOf(draft, chain.shape), draft_weight);
  if (*accepted) return given;
  const DrawKey residual = ResidualKey(words, key);
  u64 winner = DrawKept(chain, ByResidual{chain.shape, ask, sum, false}, residual);
  if (winner == 0) winner = DrawKept(chain, ByResidual{chain.shape, ask, sum, true}, residual);
  return TokenOfRank(winner);
}

}  // namespace sortition::kernels::cuda

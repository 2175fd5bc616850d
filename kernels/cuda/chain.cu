// The third kernel samples chained rows, which need more than the first two kernels can do: stages, token, and all
// other answers. One block for each such row, which the first kernel has read. y counts rows.
#include "kernels/cuda/answer.cuh"
#include "kernels/cuda/chain.cuh"
#include "kernels/cuda/describe.cuh"
#include "kernels/cuda/place.cuh"
#include "kernels/cuda/race.cuh"
#include "kernels/cuda/verify.cuh"

namespace sortition::kernels::cuda {
namespace {

__device__ __noinline__ void WriteKept(const Chain& chain) {
  Shared& shared = OnChip();
  TokenBits* const kept = shared.input.chained->kept;
  if (Thread() == 0) shared.written = 0;
  __syncthreads();
  VisitKept(chain, [&](u64 rank) {
    kept[atomicAdd(&shared.written, 1u)] = {TokenOfRank(rank), ShownBits(KeyOfRank(rank), chain.shape)};
  });
}

__device__ __noinline__ void DescribeChained(const Chain& chain, u32 token, const StageSums& sums) {
  const Row& row = chain.row;
  const RowInput& input = OnChip().input;
  const ChainedInput& ask = *input.chained;
  if (Thread() == 0) row.output.kept = sums.count;
  if (ask.kept != nullptr) WriteKept(chain);
  if (!row.Has(kFlagProcessed)) return;
  const TokenPlace chosen = FindPlaces(row, chain.view, &chain, token, ask.processed_places);
  u32 top = min(chain.listed, input.processed_top_count);
  if (chain.listed == 0) top = ListTop(row, chain.view, input.processed_top_count, chain.last);
  const auto shown = [&](u32 key) { return ShownBits(key, chain.shape); };
  // adaptive-p: 0 is the largest logit that it gives
  const u32 max_bits = chain.shape.is_adapted ? 0 : shown(chain.max_key);
  WriteDistribution({max_bits, sums.first, chosen.bits, chosen.rank, TemperatureShown(chain)}, top, shown,
                    input.processed_top, &row.output.processed);
}

// Describes the raw distribution, whose sum the second kernel has left.
__device__ __noinline__ void DescribeRawOfChained(const Row& row, u32 token, u64 sum) {
  const RowInput& input = OnChip().input;
  const View view = OpenView(row, true);
  const TokenPlace chosen = FindPlaces(row, view, nullptr, token, input.chained->raw_places);
  const u32 top = ListTop(row, view, input.raw_top_count, kLastLive);
  WriteDistribution({KeyBits(row.state.raw_max_key), sum, chosen.bits, chosen.rank, 1.0}, top, KeyBits, input.raw_top,
                    &row.output.raw);
}

__device__ bool NeedsSums(const Row& row, const ChainedInput& ask) {
  return row.Has(kFlagProcessed) || ask.kept != nullptr || ask.sums_entropy || ask.task == RowTask::kVerify ||
         CarriesState(LastStage(ask).kind);
}

// Returns the row's token. Only a row that verifies a token needs `sums`.
__device__ u32 TokenOf(const Chain& chain, const StageSums& sums, bool* accepted) {
  const RowInput& input = OnChip().input;
  switch (TaskOf(input)) {
    case RowTask::kScore:
      return GivenOf(*input.chained);
    case RowTask::kVerify:
      return VerifiedToken(chain, sums.first, accepted);
    default:
      return TokenOfRank(DrawKept(chain, ByDistance<Shape>{chain.shape}, KeyOfDraw(input)));
  }
}

__device__ __noinline__ void SampleChained(const Row& row, const BatchView& batch) {
  const ChainedInput& ask = *OnChip().input.chained;
  const u64 raw_sum = row.state.raw_sum;
  __syncthreads();
  if (Thread() == 0) row.state.raw_sum = 0;
  if (FailsByDraft(row, batch)) return;
  const u32 max_key = row.state.max_key;
  const u64 before = ask.sampler_state_at != nullptr ? *ask.sampler_state_at : ask.sampler_state;
  Chain chain = {row, OpenOwnView(row), max_key, kLastLive, 0, PlainShape(KeyBits(max_key)), before};
  RunStages(chain);

  StageSums sums = NoSums();
  if (NeedsSums(row, ask)) sums = SumKept(chain, ask.sums_entropy ? kSumSurplus : kSumWeights);
  bool accepted = false;
  const u32 token = TokenOf(chain, sums, &accepted);
  Answer(row, batch, token);
  const u64 state = NextState(chain, token, sums.first);
  if (Thread() == 0) {
    *ask.output = {state, {sums.first, sums.second}, chain.shape.dynamic, accepted};
    if (ask.sampler_state_at != nullptr) *ask.sampler_state_at = state;
    if (ask.accepted_at != nullptr) *ask.accepted_at = accepted;
  }
  DescribeChained(chain, token, sums);
  if (row.Has(kFlagRaw)) DescribeRawOfChained(row, token, raw_sum);
  AnswerLogprob(row, batch);
}

}  // namespace

extern "C" __global__ void __launch_bounds__(kThreads, 2) SortitionChain(BatchView batch) {
  if ((batch.states[blockIdx.y].pending & kPendingChain) == 0) return;
  OpenInput(batch);
  SampleChained(Row(batch, blockIdx.y), batch);
}

}  // namespace sortition::kernels::cuda

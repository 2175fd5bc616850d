// The first two kernels. Several blocks read and weigh a row; the block that arrives last continues with it alone.
//
// The first kernel reads every row and samples all except those whose top-p needs the row's sum of weights. The second
// is for rows that need such a sum; a batch in which none may need one ends after the first. Chained rows are left to
// the third (chain.cu), except for the sum of a raw distribution. x counts a row's sections, y rows.
#include "kernels/cuda/answer.cuh"
#include "kernels/cuda/describe.cuh"
#include "kernels/cuda/race.cuh"
#include "kernels/cuda/read.cuh"
#include "kernels/cuda/top_p.cuh"
#include "kernels/cuda/weigh.cuh"

namespace sortition::kernels::cuda {
namespace {

// True in the last block of the row to arrive. It sees all that the other blocks wrote, and resets the counter for the
// next launch.
__device__ bool IsLastToArrive(u32* arrivals, u32 blocks) {
  Shared& shared = OnChip();
  __syncthreads();
  if (Thread() == 0) {
    __threadfence();
    shared.is_last = atomicAdd(arrivals, 1u) == blocks - 1;
    __threadfence();
    if (shared.is_last != 0) *arrivals = 0;
  }
  __syncthreads();
  return shared.is_last != 0;
}

// Reads the error that blocks recorded for the row, and clears it for the next launch. True if there was one.
__device__ bool HasFailed(const Row& row, const BatchView& batch) {
  Shared& shared = OnChip();
  if (Thread() == 0) {
    shared.sent_error = row.state.sent_error;
    shared.changed_error = row.state.changed_error;
    row.state.sent_error = 0;
    row.state.changed_error = 0;
  }
  __syncthreads();
  if (shared.sent_error != 0) {
    const u32 code = ~shared.sent_error;
    Fail(row, batch, code % 2 == 0 ? RowFault::kNaN : RowFault::kLogitTooLarge, code / 2);
  } else if (shared.changed_error != 0) {
    Fail(row, batch, RowFault::kLogitTooLarge, ~shared.changed_error);
  }
  return shared.sent_error != 0 || shared.changed_error != 0;
}

// Returns the rank of the first token with the largest key.
__device__ u64 First(const Row& row, const View& view, u32 max_key) {
  u32 first = kNone;
  VisitFrom(row, view, RankOf(max_key, kNone), [&](u64 rank) { first = min(first, TokenOfRank(rank)); });
  return RankOf(max_key, ~MaxOfAll(~first));
}

__device__ void SampleGreedy(const Row& row, const BatchView& batch, const View& view, u32 max_key, u64* winner) {
  *winner = First(row, view, max_key);
  Answer(row, batch, TokenOfRank(*winner));
  if (row.Has(kFlagProcessed)) DescribePointMass(row, *winner);
}

// Filters, draws and describes; the processed distribution may be left to the second kernel.
__device__ u32 SampleDrawn(const Row& row, const BatchView& batch, const View& view, u32 max_key, u32 floor,
                           u64* winner) {
  const RowInput& input = OnChip().input;
  const Scale scale = ScaleOf(input, max_key);
  const Kept kept = Filter(row, view, floor, scale);
  *winner = Draw(row, view, kept, max_key, scale);
  Answer(row, batch, TokenOfRank(*winner));
  if (!row.Has(kFlagProcessed)) return 0;
  if (kept.listed != 0) {
    DescribeList(row, kept.listed, *winner, max_key, scale);
    return 0;
  }
  if (input.top_k == 0) return kPendingProcessed;
  const Mass mass = MassFrom(row, view, kept.last, scale);
  const u32 rank = CountFrom(row, view, *winner);
  DescribePrefix(row, view, kept.last, mass, rank, *winner, max_key);
  return 0;
}

// Does the work after the read of a row, except sums over the whole row.
__device__ __noinline__ void FinishRead(const Row& row, const BatchView& batch) {
  if (HasFailed(row, batch)) return;
  const RowInput& input = OnChip().input;
  u32 raw_max_key = 0;
  if (row.Has(kFlagRaw) && row.IsVisibleInPart()) raw_max_key = LargestKey(row, OpenView(row, true));
  const View view = OpenView(row, false);
  const u32 max_key = LargestKey(row, view);
  if (max_key == 0) return Fail(row, batch, RowFault::kNoLiveToken, 0);
  if (!row.IsVisibleInPart()) raw_max_key = max_key;

  u32 pending = row.Has(kFlagRaw) ? kPendingRaw : 0;
  u32 floor = 1;
  u32 top_p_step = 0;
  u64 winner = 0;
  if (row.Has(kFlagChained)) {
    pending |= kPendingChain;
  } else if (row.Has(kFlagGreedy)) {
    SampleGreedy(row, batch, view, max_key, &winner);
  } else {
    const Scale scale = ScaleOf(input, max_key);
    floor = MinPFloor(input, max_key, scale);
    if (input.top_k == 0 && input.top_p != 0) {
      // The processed distribution needs the row's sum anyway.
      top_p_step = row.Has(kFlagProcessed) ? kStepRow : DrawByBounds(row, view, max_key, floor, scale, &winner);
      if (top_p_step == kStepRow) {
        pending |= kPendingSample;
      } else {
        Answer(row, batch, TokenOfRank(winner));
      }
    } else {
      pending |= SampleDrawn(row, batch, view, max_key, floor, &winner);
    }
  }
  if (pending == 0) AnswerLogprob(row, batch);
  if (Thread() != 0) return;
  row.state.pending = pending;
  row.state.max_key = max_key;
  row.state.raw_max_key = raw_max_key;
  row.state.token = TokenOfRank(winner);
  row.state.token_key = KeyOfRank(winner);
  row.state.floor = floor;
  row.state.top_p_step = top_p_step;
}

// Draws from a row after its sum is known, and describes it. Returns the winner's rank. `before`: the weights of the
// tokens before the one that is drawn if top-p keeps it, where there is one.
__device__ u64 SampleWeighed(const Row& row, const BatchView& batch, const View& view, u64 sum, u64 before) {
  const RowState& state = row.state;
  const Scale scale = ScaleOf(OnChip().input, state.max_key);
  const u64 last = RankOf(state.floor, kNone);
  if (!row.Has(kFlagProcessed)) {
    const u64 winner = DrawBySum(row, view, last, scale, RankOf(state.token_key, state.token), before, sum);
    Answer(row, batch, TokenOfRank(winner));
    return winner;
  }
  const Kept kept = TopPOfRow(row, view, sum, OnChip().input.top_p, last, scale);
  const u64 winner = Draw(row, view, kept, state.max_key, scale);
  Answer(row, batch, TokenOfRank(winner));
  if (kept.listed != 0) {
    DescribeList(row, kept.listed, winner, row.state.max_key, scale);
  } else {
    const Mass mass = MassFrom(row, view, kept.last, scale);
    DescribePrefix(row, view, kept.last, mass, CountFrom(row, view, winner), winner, row.state.max_key);
  }
  return winner;
}

// Does the work after the sums.
__device__ __noinline__ void FinishWeigh(const Row& row, const BatchView& batch) {
  const RowState state = row.state;
  if ((state.pending & kPendingChain) != 0) return;
  __syncthreads();
  if (Thread() == 0) {
    row.state.raw_sum = 0;
    row.state.processed_sum = 0;
    row.state.raw_before = 0;
    row.state.processed_before = 0;
    row.state.processed_count = 0;
  }
  const Mass all = {state.processed_sum, state.processed_count};
  u32 token = state.token;
  u32 raw_rank = state.raw_before + 1;
  if ((state.pending & kPendingSample) != 0) {
    token = TokenOfRank(SampleWeighed(row, batch, OpenView(row, false), all.sum, state.processed_before));
    raw_rank = 0;
  } else if ((state.pending & kPendingProcessed) != 0) {
    const View view = OpenView(row, false);
    DescribePrefix(row, view, RankOf(state.floor, kNone), all, u32(state.processed_before) + 1,
                   RankOf(state.token_key, state.token), state.max_key);
  }
  if ((state.pending & kPendingRaw) != 0) DescribeRaw(row, state.raw_sum, raw_rank, token, state.raw_max_key);
  AnswerLogprob(row, batch);
}

}  // namespace

extern "C" __global__ void __launch_bounds__(kThreads, 4) SortitionRead(BatchView batch) {
  OpenInput(batch);
  const Row row(batch, blockIdx.y);
  const u32 first = blockIdx.x * batch.section_groups;
  if (first >= row.groups) return;
  ReadSection(row, first, min(first + batch.section_groups, row.groups));
  const u32 blocks = (row.groups + batch.section_groups - 1) / batch.section_groups;
  if (IsLastToArrive(&row.state.read_arrivals, blocks)) FinishRead(row, batch);
}

extern "C" __global__ void __launch_bounds__(kThreads, 4) SortitionWeigh(BatchView batch) {
  if ((batch.states[blockIdx.y].pending & ~kPendingChain) == 0) return;
  OpenInput(batch);
  const Row row(batch, blockIdx.y);
  const u32 first = blockIdx.x * batch.section_groups;
  if (first >= row.groups) return;
  WeighSection(row, first, min(first + batch.section_groups, row.groups));
  const u32 blocks = (row.groups + batch.section_groups - 1) / batch.section_groups;
  if (IsLastToArrive(&row.state.weigh_arrivals, blocks)) FinishWeigh(row, batch);
}

}  // namespace sortition::kernels::cuda

// Sums, ranks and leading tokens of the distributions that rows want.
#pragma once

#include "kernels/cuda/filter.cuh"
#include "kernels/cuda/read.cuh"

namespace sortition::kernels::cuda {

// law::Logprob on the device: the only floating point of the kernels. Each operation is IEEE double, rounded once and
// never fused, so the bits are the host's.

// 2^32 log2(x), exact at powers of two.
__device__ inline i64 Log2Clamped(u64 x) { return max(i64(Log2Raw(x)), i64(63 - LeadingZeros64(x)) << 32); }

__device__ inline float Logprob(u32 bits, u32 max_bits, u64 weight_sum, double temperature) {
  const double log_sum = __dmul_rn(__ll2double_rn(Log2Clamped(weight_sum) - (i64{44} << 32)), 0x1.62e42fefa39efp-33);
  const double below = __ddiv_rn(__dsub_rn(NumberOf(bits), NumberOf(max_bits)), temperature);
  return __double2float_rn(__dsub_rn(below, log_sum));
}

// A distribution without its first tokens.
struct Summary {
  u32 max_bits;
  u64 sum;
  u32 chosen_bits;
  u32 rank;
  double temperature;
};

// Writes the list's first `count` tokens, in order, whose bits are bits_of(key), and the rest of the distribution.
template <typename BitsOfKey>
__device__ void WriteDistribution(const Summary& summary, u32 count, BitsOfKey bits_of, TopToken* top,
                                  DistributionOutput* output) {
  Shared& shared = OnChip();
  for (u32 i = Thread(); i < count; i += kThreads) {
    const u32 bits = bits_of(KeyOfRank(shared.list[i]));
    top[i] = {TokenOfRank(shared.list[i]), bits, Logprob(bits, summary.max_bits, summary.sum, summary.temperature)};
  }
  if (Thread() != 0) return;
  output->weight_sum = summary.sum;
  output->max_bits = summary.max_bits;
  output->chosen_bits = summary.chosen_bits;
  output->rank = summary.rank;
  output->top_count = count;
  output->logprob = Logprob(summary.chosen_bits, summary.max_bits, summary.sum, summary.temperature);
}

// Fills the list with the first `asked` candidates from `last`. Returns their number.
__device__ inline u32 ListTop(const Row& row, const View& view, u32 asked, u64 last) {
  return asked == 0 ? 0 : SelectFirst(row, view, asked, last);
}

// Describes the processed distribution of a prefix, which the list holds.
__device__ __noinline__ void DescribeList(const Row& row, u32 listed, u64 winner, u32 max_key, const Scale& scale) {
  Shared& shared = OnChip();
  const u64 sum = SumOfList(listed, scale);
  u32 before = 0;
  for (u32 i = Thread(); i < listed; i += kThreads) before += shared.list[i] > winner;
  before = CountOfAll(before);
  const Summary summary = {KeyBits(max_key), sum, KeyBits(KeyOfRank(winner)), before + 1, shared.input.temperature};
  WriteDistribution(summary, min(listed, shared.input.processed_top_count), KeyBits, shared.input.processed_top,
                    &row.output.processed);
  if (Thread() == 0) row.output.kept = listed;
}

// Describes the processed distribution of the candidates from `last`, whose mass is known.
__device__ __noinline__ void DescribePrefix(const Row& row, const View& view, u64 last, const Mass& mass, u32 rank,
                                            u64 winner, u32 max_key) {
  const RowInput& input = OnChip().input;
  const Summary summary = {KeyBits(max_key), mass.sum, KeyBits(KeyOfRank(winner)), rank, input.temperature};
  const u32 top = ListTop(row, view, input.processed_top_count, last);
  WriteDistribution(summary, top, KeyBits, input.processed_top, &row.output.processed);
  if (Thread() == 0) row.output.kept = mass.count;
}

// A greedy row's processed distribution is all on its token.
__device__ __noinline__ void DescribePointMass(const Row& row, u64 winner) {
  Shared& shared = OnChip();
  __syncthreads();
  if (Thread() == 0) shared.list[0] = winner;
  __syncthreads();
  const u32 bits = KeyBits(KeyOfRank(winner));
  WriteDistribution({bits, u64{1} << 44, bits, 1, 1.0}, min(1u, shared.input.processed_top_count), KeyBits,
                    shared.input.processed_top, &row.output.processed);
  if (Thread() == 0) row.output.kept = 1;
}

// Describes the raw distribution, whose sum is known. `rank` 0: not known.
__device__ __noinline__ void DescribeRaw(const Row& row, u64 sum, u32 rank, u32 token, u32 raw_max_key) {
  const RowInput& input = OnChip().input;
  const View view = OpenView(row, true);
  const u32 key = Key(Canonical(SentBits(input, token)));
  if (rank == 0) rank = CountFrom(row, view, RankOf(key, token));
  const u32 top = ListTop(row, view, input.raw_top_count, kLastLive);
  WriteDistribution({KeyBits(raw_max_key), sum, KeyBits(key), rank, 1.0}, top, KeyBits, input.raw_top, &row.output.raw);
}

}  // namespace sortition::kernels::cuda

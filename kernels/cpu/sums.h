// Sums and numbers over a prefix of a row's order.
#pragma once

#include <cstdint>
#include <limits>
#include <span>

#include "kernels/cpu/row_view.h"
#include "kernels/cpu/scale.h"
#include "kernels/cpu/scratch.h"
#include "kernels/cpu/simd/kernels.h"

namespace sortition::kernels::cpu {

// Returns the sum of the weights of listed tokens.
uint64_t WeighList(const Kernels& kernels, std::span<const Candidate> list, const RowScale& scale, Scratch* scratch);

// Returns the sum of the weights of the tokens that are not after `last`. Reads the groups that have one.
uint64_t SumOfWeights(const Kernels& kernels, const RowView& row, Candidate last, const RowScale& scale,
                      Scratch* scratch);

// Returns the sum of the weights of the kept tokens.
uint64_t WeighKept(const Kernels& kernels, const RowView& row, const RowScale& scale, const Kept& kept,
                   Scratch* scratch);

// Sums the weights of the tokens with a key >= `floor`, and apart those with a key >= `high`. 1 <= floor <= high.
struct SplitSum {
  uint64_t all;
  uint64_t above;
};
SplitSum SplitSumOfWeights(const Kernels& kernels, const RowView& row, uint32_t floor, uint32_t high,
                           const RowScale& scale, Scratch* scratch);

// Bounds on a sum of weights, both of which may be met.
//
// A weight never falls with the key, for the distance never rises with it (distance.inc), nor the weight with the
// distance (weight.inc): all roundings there are monotone. So for a group of up to 64 tokens with its `reached` r and
// its `maxima` m (row_view.h),
//
//   w(r) <= the sum of the group's weights <= 64 w(m),
//
// because some token has a key of r or more, and none has one above m. Where r is 0, so is the lower bound. It is also
// 0 where r may be a masked token's key, or is below a floor under which no token counts; and so is the upper bound
// where m is below the floor. All are the law's integers, added exactly: there is no error to allow for.
struct SumBounds {
  static constexpr uint64_t kNoBound = std::numeric_limits<uint64_t>::max();

  uint64_t low = 0;
  uint64_t high = kNoBound;

  // Returns bounds on a sum with `sum` more.
  SumBounds Plus(uint64_t sum) const { return {low + sum, high > kNoBound - sum ? kNoBound : high + sum}; }
};

// Bounds the sum of the weights of the tokens with a key >= `floor` in the groups whose maxima are below `level`. Takes
// a weight a group. floor >= 1.
SumBounds BoundGroupsBelow(const Kernels& kernels, const RowView& row, uint32_t level, const RowScale& scale,
                           Scratch* scratch, uint32_t floor = 1);

// Returns the same sum of other groups: those whose maxima are `level` or more, and below `end`. level >= 1.
uint64_t SumOfGroupsFrom(const Kernels& kernels, const RowView& row, uint32_t level, const RowScale& scale,
                         Scratch* scratch, uint32_t floor = 1, uint32_t end = ~0u);

// The sum of some leading groups, and bounds on that of the others.
struct LeadingSum {
  uint32_t level = ~0u;  // the smallest maximum of the leading groups
  SumBounds rest;
  uint64_t sum = 0;
};

// Sums the tokens with a key >= `floor` of enough leading groups that the others weigh `widest` at most, if these are
// few, or not more than the share `most` of the groups that weigh something; otherwise none. widest <= 64
// law::kUnitWeight.
LeadingSum SumLeadingGroups(const Kernels& kernels, const RowView& row, uint32_t floor, uint64_t widest, double most,
                            const RowScale& scale, Scratch* scratch);

// Bounds the sum of the weights of the tokens with a key >= `floor`, and of those before `end` in order, which are some
// of them, where the row HasNearWeights. The bounds of `all` are close if `floor` is 1. Reads every group that weighs
// something.
struct SplitBounds {
  SumBounds all;
  SumBounds before;
};
SplitBounds BoundAllWeights(const Kernels& kernels, const RowView& row, Candidate end, const RowScale& scale,
                            Scratch* scratch, uint32_t floor = 1);

// Bounds on the moments of all tokens, where the row HasNearWeights: near sums over the groups whose maxima are `level`
// or more, and with them between nothing and 64 times the maxima's for the other groups. This bounds these, because
// like a weight, a squared weight never falls with the key. Nor does a moment, w t / 2^28, from t = 1.5 octaves on (t
// 2^-t falls from 1 / ln 2 on) but for roundings, for which the near sums leave room. Where `level` is nearer than
// that, a moment has no upper bound.
struct MomentBounds {
  SumBounds sum;
  SumBounds other;  // of the moments or the squares, if these are wanted
};
MomentBounds BoundMoments(const Kernels& kernels, const RowView& row, uint32_t level, const RowScale& scale,
                          MomentsWanted wanted, Scratch* scratch);

// Returns the number of tokens that are not after `last`. Reads the groups that have one.
uint32_t NumberOfTokens(const Kernels& kernels, const RowView& row, Candidate last, Scratch* scratch);

}  // namespace sortition::kernels::cpu

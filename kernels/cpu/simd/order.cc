// Candidates by their order, without sorting them.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/simd/order.cc"
#include "hwy/foreach_target.h"
//
#include "hwy/highway.h"
//
#include <algorithm>

#include "kernels/cpu/simd/kernels.h"
#include "kernels/cpu/simd/law.inc"
//
#include "kernels/cpu/simd/load.inc"

HWY_BEFORE_NAMESPACE();
namespace sortition::kernels::cpu::HWY_NAMESPACE {
namespace {

constexpr uint32_t kRanks = hn::MaxLanes(D64());
constexpr uint32_t kFew = 4;  // up to this number, candidates are compared one by one

HWY_INLINE V64 RanksAt(const Candidate* candidates, uint32_t i) {
  return hn::LoadU(D64(), reinterpret_cast<const uint64_t*>(candidates + i));
}

// Finds, by bisection, the last candidate of the shortest prefix whose shares reach `threshold`. share(i) is a vector
// of the shares of candidates i, i + 1, ...
template <typename Share>
HWY_INLINE Candidate LastOfPrefix(const Candidate* candidates, uint32_t count, law::Threshold threshold, Share share) {
  const D64 d;
  const uint32_t whole = count / kRanks * kRanks;
  const auto rest = hn::FirstN(d, count - whole);
  // Calls visit(ranks, shares) for all candidates, and with rank 0, which no candidate has, behind the list's end.
  const auto for_all = [&](auto visit) HWY_ATTR {
    for (uint32_t i = 0; i < whole; i += kRanks) visit(RanksAt(candidates, i), share(i));
    if (whole != count) visit(hn::IfThenElseZero(rest, RanksAt(candidates, whole)), share(whole));
  };

  // The shares of ranks >= low reach the threshold, those of ranks >= high do not.
  V64 least = hn::Set(d, candidates[0].rank);
  V64 most = least;
  for (uint32_t i = 0; i < whole; i += kRanks) {
    least = hn::Min(least, RanksAt(candidates, i));
    most = hn::Max(most, RanksAt(candidates, i));
  }
  alignas(64) uint64_t lanes[2][kRanks];
  hn::Store(least, d, lanes[0]);
  hn::Store(most, d, lanes[1]);
  uint64_t low = *std::min_element(lanes[0], lanes[0] + kRanks);
  uint64_t high = *std::max_element(lanes[1], lanes[1] + kRanks);
  for (uint32_t i = whole; i < count; ++i) {
    low = std::min(low, candidates[i].rank);
    high = std::max(high, candidates[i].rank);
  }
  ++high;
  uint64_t reached_high = 0;
  uint32_t number_low = count;
  uint32_t number_high = 0;
  while (number_low - number_high > kFew) {
    const uint64_t middle = low + (high - low) / 2;
    V64 sum = hn::Zero(d);
    uint32_t before = 0;
    for_all([&](V64 ranks, V64 shares) HWY_ATTR {
      const auto after = hn::Lt(ranks, hn::Set(d, middle));
      sum = hn::Add(sum, hn::IfThenZeroElse(after, shares));
      before += kRanks - uint32_t(hn::CountTrue(d, after));
    });
    const uint64_t reached = SumOf(sum);
    if (law::Reaches(reached, threshold)) {
      low = middle;
      number_low = before;
    } else {
      high = middle;
      number_high = before;
      reached_high = reached;
    }
  }

  // The remaining candidates, in order.
  uint64_t ranks_left[kFew + kRanks];
  uint64_t shares_left[kFew + kRanks];
  uint32_t left = 0;
  for_all([&](V64 ranks, V64 shares) HWY_ATTR {
    const auto inside = hn::AndNot(hn::Lt(ranks, hn::Set(d, low)), hn::Lt(ranks, hn::Set(d, high)));
    StoreWhere(inside, ranks, ranks_left + left);
    left += StoreWhere(inside, shares, shares_left + left);
  });
  for (;;) {
    const uint32_t first = uint32_t(std::max_element(ranks_left, ranks_left + left) - ranks_left);
    reached_high += shares_left[first];
    if (law::Reaches(reached_high, threshold)) return {ranks_left[first]};
    ranks_left[first] = 0;
  }
}

}  // namespace

Candidate LastReaching(const Candidate* candidates, const uint64_t* weights, uint32_t count, law::Threshold threshold) {
  return LastOfPrefix(candidates, count, threshold, [&](uint32_t i) HWY_ATTR { return hn::LoadU(D64(), weights + i); });
}

Candidate NthCandidate(const Candidate* candidates, uint32_t count, uint32_t n) {
  return LastOfPrefix(candidates, count, law::MakeThreshold(n), [](uint32_t) HWY_ATTR { return hn::Set(D64(), 1); });
}

uint32_t MoveNotAfter(Candidate* candidates, uint32_t count, Candidate last) {
  const D64 d;
  uint32_t moved = 0;
  for (uint32_t i = 0; i < count; i += kRanks) {
    const V64 ranks = RanksAt(candidates, i);
    auto keep = hn::Not(hn::Lt(ranks, hn::Set(d, last.rank)));
    if (i + kRanks > count) keep = hn::And(keep, hn::FirstN(d, count - i));
    moved += StoreWhere(keep, ranks, reinterpret_cast<uint64_t*>(candidates + moved));
  }
  return moved;
}

}  // namespace sortition::kernels::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

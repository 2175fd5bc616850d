// Candidates by their order, without sorting them.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/simd/order.cc"
#include "hwy/foreach_target.h"
//
#include "hwy/highway.h"
//
#include <algorithm>
#include <functional>

#include "kernels/cpu/simd/kernels.h"
#include "kernels/cpu/simd/law.inc"
//
#include "kernels/cpu/simd/load.inc"

HWY_BEFORE_NAMESPACE();
namespace sortition::kernels::cpu::HWY_NAMESPACE {
namespace {

constexpr uint32_t kRanks = hn::MaxLanes(D64());
constexpr uint32_t kFew = 16;

HWY_INLINE V64 RanksAt(const Candidate* candidates, uint32_t i) {
  return hn::LoadU(D64(), reinterpret_cast<const uint64_t*>(candidates + i));
}

// The last of the shortest prefix whose shares reach `threshold`, by bisection: share(i) gives the shares of candidates
// i and following, as a vector.
template <typename Share>
HWY_INLINE Candidate LastOfPrefix(const Candidate* candidates, uint32_t count, uint64_t threshold, Share share) {
  const D64 d;
  const uint32_t whole = count / kRanks * kRanks;
  const auto rest = hn::FirstN(d, count - whole);
  // Calls visit(ranks, shares) for all candidates; those behind the list's end have rank 0, which nobody has.
  const auto for_all = [&](auto visit) HWY_ATTR {
    for (uint32_t i = 0; i < whole; i += kRanks) visit(RanksAt(candidates, i), share(i));
    if (whole != count) visit(hn::IfThenElseZero(rest, RanksAt(candidates, whole)), share(whole));
  };

  // Shares of a rank >= low reach the threshold, those of a rank >= high do not.
  uint64_t low = 1;
  uint64_t high = 0;
  uint64_t reached_high = 0;
  for (uint32_t i = 0; i < count; ++i) high = std::max(high, candidates[i].rank + 1);
  uint32_t number_low = count;
  uint32_t number_high = 0;
  while (number_low - number_high > kFew) {
    const uint64_t middle = low + (high - low) / 2;
    V64 sum = hn::Zero(d);
    V64 number = hn::Zero(d);
    const V64 from = hn::Set(d, middle);
    for_all([&](V64 ranks, V64 shares) HWY_ATTR {
      const auto before = hn::Lt(ranks, from);
      sum = hn::Add(sum, hn::IfThenZeroElse(before, shares));
      number = hn::Add(number, hn::IfThenZeroElse(before, hn::Set(d, 1)));
    });
    const uint64_t reached = hn::GetLane(hn::SumOfLanes(d, sum));
    const auto counted = uint32_t(hn::GetLane(hn::SumOfLanes(d, number)));
    if (reached >= threshold) {
      low = middle;
      number_low = counted;
    } else {
      high = middle;
      number_high = counted;
      reached_high = reached;
    }
  }

  struct Token {
    uint64_t rank, share;
    bool operator>(const Token& other) const { return rank > other.rank; }
  };
  Token few[kFew];
  uint32_t found = 0;
  uint32_t at = 0;
  for_all([&](V64 ranks, V64 shares) HWY_ATTR {
    const auto inside = hn::AndNot(hn::Lt(ranks, hn::Set(d, low)), hn::Lt(ranks, hn::Set(d, high)));
    if (!hn::AllFalse(d, inside)) {
      alignas(64) uint64_t lanes[kRanks];
      hn::Store(shares, d, lanes);
      for (uint32_t lane = 0; lane < std::min(kRanks, count - at); ++lane) {
        const uint64_t rank = candidates[at + lane].rank;
        if (rank >= low && rank < high) few[found++] = {rank, lanes[lane]};
      }
    }
    at += kRanks;
  });
  std::sort(few, few + found, std::greater<>());
  uint32_t last = 0;
  for (reached_high += few[0].share; reached_high < threshold; reached_high += few[last].share) ++last;
  return {few[last].rank};
}

}  // namespace

Candidate LastReaching(const Candidate* candidates, const uint64_t* weights, uint32_t count, uint64_t threshold) {
  return LastOfPrefix(candidates, count, threshold, [&](uint32_t i) HWY_ATTR { return hn::LoadU(D64(), weights + i); });
}

Candidate NthCandidate(const Candidate* candidates, uint32_t count, uint32_t n) {
  return LastOfPrefix(candidates, count, n, [](uint32_t) HWY_ATTR { return hn::Set(D64(), 1); });
}

uint32_t MoveNotAfter(Candidate* candidates, uint32_t count, Candidate last) {
  const D64 d;
  uint32_t moved = 0;
  for (uint32_t i = 0; i < count; i += kRanks) {
    const V64 ranks = RanksAt(candidates, i);
    auto keep = hn::Not(hn::Lt(ranks, hn::Set(d, last.rank)));
    if (i + kRanks > count) keep = hn::And(keep, hn::FirstN(d, count - i));
    hn::StoreU(hn::Compress(ranks, keep), d, reinterpret_cast<uint64_t*>(candidates + moved));
    moved += uint32_t(hn::CountTrue(d, keep));
  }
  return moved;
}

}  // namespace sortition::kernels::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

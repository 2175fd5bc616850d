// Cuts that need sums over the kept tokens. Bounds on the sums decide where they make a cut certain.
#include <algorithm>
#include <optional>
#include <utility>

#include "kernels/cpu/chain/chain_run.h"
#include "kernels/cpu/select.h"
#include "kernels/cpu/sums.h"
#include "kernels/law/row_law.h"

namespace sortition::kernels::cpu {
namespace {

constexpr uint32_t kLeading = 128;      // about the number of groups that typical-p reads first
constexpr uint32_t kMostLooked = 2048;  // tokens that it looks at before the row is summed
constexpr uint32_t kNearest = ~0u - 1;  // not ~0u: no rank may be the largest number

MomentsWanted WantedBy(const law::StageWords& stage) {
  switch (law::SumsOf(stage.kind)) {
    case law::kSumMoments:
      return MomentsWanted::kMoment;
    case law::kSumCountedMoments:
      return MomentsWanted::kMomentAndCount;
    case law::kSumSquares:
      return MomentsWanted::kSquare;
    default:
      return MomentsWanted::kSum;
  }
}

law::StageSums ToSums(const Moments& moments) {
  return {moments.count, moments.sum, moments.moment + moments.square};  // one of these at most is not 0
}

}  // namespace

law::StageSums Chain::SumsOfKept(const law::StageWords& stage) const {
  switch (law::SumsOf(stage.kind)) {
    case law::kSumWeights:
    case law::kSumMoments:
    case law::kSumCountedMoments:
    case law::kSumSquares:
      return ToSums(MomentsOfKept(WantedBy(stage)));
    default:
      return law::NoSums();
  }
}

Moments Chain::MomentsOfKept(MomentsWanted wanted) const {
  if (is_listed_) {
    Moments moments = kernels_.SumMomentsOfCandidates(list_.data(), uint32_t(list_.size()), scale_, wanted);
    moments.count = uint32_t(list_.size());
    return moments;
  }
  uint32_t* const groups = scratch_->groups.Reserve(row_.groups);
  const bool counts = wanted == MomentsWanted::kMomentAndCount;
  const uint32_t floor = counts ? last_.key() : std::max(last_.key(), scale_.first_weighted_key);
  const uint32_t count = kernels_.SelectAtLeast(row_.maxima, row_.groups, floor, groups);
  Moments moments = kernels_.SumMoments(row_, groups, count, last_, scale_, wanted);
  for (const Candidate& candidate : row_.edited) {
    if (candidate < last_) continue;
    const uint32_t t = DistanceOfKey(candidate.key(), scale_);
    moments.sum += law::Weight(t);
    if (counts || wanted == MomentsWanted::kMoment) moments.moment += law::Moment(t);
    if (counts) ++moments.count;
    if (wanted == MomentsWanted::kSquare) moments.square += law::SquaredWeight(t);
  }
  return moments;
}

bool Chain::HasBounds() const {
  constexpr uint32_t kFewestGroups = 384;
  return !is_listed_ && last_ == kLastLive && HasNearWeights(scale_) && row_.groups >= kFewestGroups;
}

Chain::Ends Chain::EndsOfSums(const law::StageWords& stage, SumStep step) {
  step_ = step;
  if (step == SumStep::kRow) {
    const law::StageSums sums = SumsOfKept(stage);
    return {sums, sums};
  }
  // A drawn token is seldom near the cut, but one token or another often is. Far tokens matter more to a mean.
  const MomentsWanted wanted = WantedBy(stage);
  const uint32_t part = draws_alone_ ? 32 : (wanted == MomentsWanted::kMoment ? 4 : 6);
  const uint32_t groups = std::max(1u, row_.groups / part);
  uint32_t* const folded = scratch_->folded.Reserve(row_.groups);
  uint32_t level = kernels_.LowerBoundOfNth(row_.maxima, row_.groups, groups, 1, folded);
  // Leaves out the last of these where too many have the same maximum.
  if (kernels_.SelectAtLeast(row_.maxima, row_.groups, level, folded) > groups + groups / 4) ++level;
  MomentBounds bounds = BoundMoments(kernels_, row_, level, scale_, wanted, scratch_);
  // The first token has a unit. No entropy is above 20 octaves (moments.inc), so no mean is either. The law's functions
  // have room for 21.
  bounds.sum.low = std::max(bounds.sum.low, law::kUnitWeight);
  if (wanted == MomentsWanted::kSquare) bounds.other.low = std::max(bounds.other.low, law::SquaredWeight(0));
  constexpr uint32_t kMostOctaves = 21u << 26;
  const uint64_t most = (bounds.sum.low >> 28) * (kMostOctaves - law::SumOctaves(bounds.sum.low));
  if (wanted == MomentsWanted::kMoment) bounds.other.high = std::min(bounds.other.high, most);
  return {{0, bounds.sum.low, bounds.other.high}, {0, bounds.sum.high, bounds.other.low}};
}

Chain::Edge Chain::EdgeBetween(const law::StageWords& stage, const Ends& ends) const {
  const auto floor = [&](const law::StageSums& sums) {
    return FloorWithin(law::BoundOf(stage, sums, request_.sampler_state));
  };
  const uint32_t small = floor(ends.small);
  const uint32_t large = floor(ends.large);
  return {std::min(small, large), std::max(small, large)};
}

bool Chain::HasTokens(const Edge& edge) {
  constexpr uint32_t kFewGroups = 256;
  if (edge.possible == edge.sure) return false;
  uint32_t* const groups = scratch_->groups.Reserve(row_.groups);
  if (kernels_.SelectAtLeast(row_.maxima, row_.groups, edge.possible, groups) > kFewGroups) return true;
  return !CollectBetween(kernels_, row_, edge.possible, edge.sure, scratch_, &scratch_->leading).empty();
}

bool Chain::Keeps(Candidate drawn) {
  if (drawn.key() >= edge_.sure) return true;
  const law::StageWords stage = law::ToStageWords(request_.parameters->chain.back());
  is_listed_ = false;
  last_ = kLastLive;
  edge_ = EdgeBetween(stage, EndsOfSums(stage, SumStep::kRow));
  KeepFrom(edge_.possible);
  return drawn.key() >= edge_.sure;
}

void Chain::KeepWithin(const law::StageWords& stage) {
  if (HasBounds() && law::SumsOf(stage.kind) != law::kSumNothing) {
    const Edge edge = EdgeBetween(stage, EndsOfSums(stage, SumStep::kLeadingGroups));
    if (draws_alone_) {
      edge_ = edge;
      return KeepFrom(edge.possible);
    }
    if (!HasTokens(edge)) return KeepFrom(edge.sure);
  }
  KeepFrom(EdgeBetween(stage, EndsOfSums(stage, SumStep::kRow)).sure);
}

void Chain::DropHead(const law::StageWords& stage) {
  Ends ends;
  Edge edge;
  const auto decides = [&](SumStep step) {
    ends = EndsOfSums(stage, step);
    if (law::HasHead(stage, ends.small) != law::HasHead(stage, ends.large)) return false;
    if (law::HasHead(stage, ends.small)) edge = EdgeBetween(stage, ends);
    return step == SumStep::kRow || !HasTokens(edge);
  };
  if (!HasBounds() || !decides(SumStep::kLeadingGroups)) decides(SumStep::kRow);
  if (!law::HasHead(stage, ends.small)) return;
  // The tokens within the bound are the first ones; finds the last of them.
  const uint32_t floor = edge.sure;
  if (is_listed_) {
    Candidate last = *std::ranges::max_element(list_);
    for (const Candidate& candidate : list_) {
      if (candidate.key() >= floor) last = std::min(last, candidate);
    }
    const auto left = std::ranges::count_if(list_, [&](Candidate c) { return c <= last; });
    if (uint32_t(left) >= law::LeastCount(stage)) DropBefore(last);
    return;
  }
  const Candidate end = std::max(last_, Candidate::Of(floor, ~0u));
  const std::span<Candidate> head = CollectNotAfter(kernels_, row_, end, scratch_, &scratch_->leading);
  const Candidate last = *std::ranges::min_element(head);
  if (law::LeastCount(stage) > 1) {
    const size_t left = NumberOfTokens(kernels_, row_, last_, scratch_) - (head.size() - 1);
    if (left < law::LeastCount(stage)) return;
  }
  DropBefore(last);
}

void Chain::KeepNearest(const law::StageWords& stage) {
  const uint32_t least = law::LeastCount(stage);
  const auto find = [&](SumStep step) -> std::optional<Nearest> {
    const auto [small, large] = EndsOfSums(stage, step);
    // The farther a token before the mean the farther the mean, and the nearer one after it. So if the same tokens are
    // nearest to two means, they are to all between; and of these sets none is smaller.
    const law::Threshold lower = law::ThresholdOf(stage, small);
    const law::Threshold upper = law::ThresholdOf(stage, large);
    const uint32_t nearer = law::MeanDistance(large.first, large.second);
    const uint32_t farther = law::MeanDistance(small.first, small.second);
    // Bounds that are further apart than that, a quarter of an octave or a sixteenth of the sum, seldom decide.
    constexpr uint32_t kFarApart = 1u << 24;
    if (farther - nearer > kFarApart || large.first - small.first > small.first / 16) return std::nullopt;
    const std::optional<Nearest> found = FindNearest(nearer, lower, upper, least);
    if (nearer == farther || !found) return found;
    const std::optional<Nearest> again = FindNearest(farther, lower, upper, least);
    return again && again->first == found->first && again->last == found->last ? found : std::nullopt;
  };
  std::optional<Nearest> found;
  if (HasBounds() && least <= 1 && row_.groups >= 8 * kLeading) found = find(SumStep::kLeadingGroups);
  if (!found) found = find(SumStep::kRow);
  KeepFrom(FloorWithin(found->bound));
  if (found->has_head) DropBefore(found->first);
}

std::optional<Chain::Nearest> Chain::FindNearest(uint32_t mean, law::Threshold lower, law::Threshold upper,
                                                 uint32_t least) {
  const bool is_exact = step_ == SumStep::kRow;
  // Lists ever more leading tokens until they include every token that is near enough to the mean. All others have a
  // distance of `edge` or more.
  std::span<Candidate> leading;
  const uint32_t* t = nullptr;
  Candidate farthest;
  for (uint32_t number = kLeading;; number *= 4) {
    uint32_t edge = law::kDead;
    if (is_listed_) {
      leading = list_;
    } else {
      uint32_t* const folded = scratch_->folded.Reserve(row_.groups);
      const uint32_t from = kernels_.LowerBoundOfNth(row_.reached, row_.groups, number, last_.key(), folded);
      uint32_t* const groups = scratch_->groups.Reserve(row_.groups);
      // Where many tokens are equal, to look at them takes longer than the sums.
      if (!is_exact && kernels_.SelectAtLeast(row_.maxima, row_.groups, from, groups) > 2 * number) return std::nullopt;
      leading = CollectBetween(kernels_, row_, from, kNoCeiling, scratch_, &scratch_->leading);
      leading = leading.first(kernels_.MoveNotAfter(leading.data(), uint32_t(leading.size()), last_));
      if (from > last_.key()) edge = DistanceOfKey(from, scale_);
    }
    const auto count = uint32_t(leading.size());
    if (!is_exact && count > kMostLooked) return std::nullopt;
    t = least > 1 ? ExactDistances(leading) : Distances(leading);
    // Candidates by nearness: the nearest come first.
    Candidate* const nearest = scratch_->nearest.Reserve(count);
    uint64_t* const weights = scratch_->weights.Reserve(count);
    kernels_.WeighCandidates(leading.data(), count, scale_, weights);
    uint64_t sum = 0;
    uint32_t near = 0;  // live tokens within the edge
    for (uint32_t i = 0; i < count; ++i) {
      const uint32_t gap = law::TypicalGap(t[i], mean);
      nearest[i] = Candidate::Of(kNearest - gap, i);
      const bool is_beyond = t[i] >= edge || (edge != law::kDead && gap >= edge - std::min(edge, mean));
      if (is_beyond) weights[i] = 0;
      sum += weights[i];
      if (is_beyond || t[i] == law::kDead) {
        nearest[i] = {0};
      } else {
        ++near;
      }
    }
    if (!law::Reaches(sum, upper) || (near < least && edge != law::kDead)) {
      if (!is_exact && number > row_.groups / 8) return std::nullopt;  // the next look takes longer than the sums
      continue;
    }
    farthest = kernels_.LastReaching(nearest, weights, count, upper);
    if (!is_exact && kernels_.LastReaching(nearest, weights, count, lower).key() != farthest.key()) return std::nullopt;
    if (least > 1) farthest = std::min(farthest, kernels_.NthCandidate(nearest, count, std::min(least, near)));
    break;
  }
  const law::Window window = law::TypicalWindow(mean, kNearest - farthest.key());
  Nearest found = {.first = {0}, .last = {~uint64_t{0}}, .has_head = false, .bound = window.bound};
  for (size_t i = 0; i < leading.size(); ++i) {
    const bool is_in_head = law::IsInHead(t[i], window);
    found.has_head |= is_in_head;
    if (!is_in_head) found.first = std::max(found.first, leading[i]);
    if (law::IsWithin(t[i], window.bound)) found.last = std::min(found.last, leading[i]);
  }
  return found;
}

}  // namespace sortition::kernels::cpu

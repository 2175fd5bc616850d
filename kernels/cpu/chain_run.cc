// The stages' loops and searches.
#include "kernels/cpu/chain_run.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <functional>

#include "kernels/check.h"
#include "kernels/cpu/filter.h"
#include "kernels/cpu/select.h"
#include "kernels/cpu/sums.h"
#include "kernels/law/row_law.h"

namespace sortition::kernels::cpu {
namespace {

constexpr uint32_t kLeading = 128;      // about the number of groups that typical-p reads first
constexpr uint32_t kMostLooked = 2048;  // tokens that it looks at before the row is summed
constexpr uint32_t kNearest = ~0u - 1;  // not ~0u: no rank may be the largest number

// Masks in `*row` every token before `first`, which is live. `*row` is the changed row. Afterwards all that it refers
// to, except the logits, lies in `scratch`. O(vocabulary / 64) and the groups of the masked tokens.
void MaskHead(const Kernels& kernels, Candidate first, Scratch* scratch, RowView* row) {
  const std::span<Candidate> head = CollectBetween(kernels, *row, first.key(), kNoCeiling, scratch, &scratch->leading);
  uint64_t* const words = scratch->sent_words.Reserve(row->groups);
  if (row->sent_words == nullptr) {
    std::fill_n(words, row->groups, ~uint64_t{0});
  } else if (row->sent_words != words) {
    std::copy_n(row->sent_words, row->groups, words);
  }
  const size_t padded = (row->groups + 63) / 64 * 64;
  uint32_t* const maxima = scratch->changed_maxima.Reserve(row->groups);
  uint32_t* const reached = scratch->reached.Reserve(row->groups);
  if (row->reached != reached) std::copy_n(row->reached, padded, reached);
  // Groups that lose no token have no key above that of `first`.
  std::transform(row->maxima, row->maxima + padded, maxima, [&](uint32_t key) { return std::min(key, first.key()); });

  uint32_t* const groups = scratch->groups.Reserve(head.size());
  uint32_t count = 0;
  for (const Candidate& candidate : head) {
    if (candidate <= first) continue;
    words[candidate.token() / law::kGroupSize] &= ~(uint64_t{1} << (candidate.token() % law::kGroupSize));
    groups[count++] = candidate.token() / law::kGroupSize;
  }
  std::sort(groups, groups + count);
  count = uint32_t(std::unique(groups, groups + count) - groups);

  Candidate* const edited = scratch->edited.data();
  Candidate* const kept_end =
      std::remove_if(edited, edited + row->edited.size(), [&](Candidate c) { return c > first; });
  row->edited = {edited, size_t(kept_end - edited)};
  row->sent_words = words;
  row->listed = {};
  row->listed_floor = kNoCeiling;
  row->maxima = maxima;
  row->reached = reached;
  uint32_t* const largest = scratch->folded.Reserve(count);
  kernels.LargestSentKeys(*row, groups, count, largest);
  for (uint32_t i = 0; i < count; ++i) maxima[groups[i]] = reached[groups[i]] = largest[i];
  for (const Candidate& candidate : row->edited) {
    const uint32_t group = candidate.token() / law::kGroupSize;
    maxima[group] = std::max(maxima[group], candidate.key());
    reached[group] = std::max(reached[group], candidate.key());
  }
  row->max_key = first.key();
}

}  // namespace

Chain::Chain(const Kernels& kernels, const RowRequest& request, const RowView& row, Scratch* scratch)
    : kernels_(kernels), request_(request), scratch_(scratch), row_(row), shape_(law::PlainShape(FirstBits())) {
  scale_ = MakeRowScale(shape_, row_.max_key);
}

void Chain::Run(bool draws_alone) {
  const Stage& last = request_.parameters->chain.back();
  for (const Stage& stage : request_.parameters->chain) {
    const law::StageWords words = law::ToStageWords(stage);
    draws_alone_ = draws_alone && &stage == &last && law::CutOf(words.kind) == law::kCutWithin &&
                   law::LeastCount(words) <= 1 && !law::CarriesState(words.kind);
    Apply(words);
  }
  if (law::StateNeedsSum(uint32_t(last.kind))) sum_ = SumOfKept();
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

Kept Chain::kept() const {
  if (is_listed_) return Kept::Of(list_);
  Kept kept;
  kept.last = last_;
  return kept;
}

void Chain::Apply(const law::StageWords& stage) {
  if (!law::ActsInDraw(stage, law::ToDrawKey(request_.noise))) return;
  const uint32_t least = law::LeastOfFirst(stage);
  if (least <= 1) return Cut(stage);
  const std::span<Candidate> first = FirstInOrder(least, &scratch_->least);
  Cut(stage);
  if (kept().Has(first.back())) return;
  list_ = {scratch_->kept.Reserve(first.size()), first.size()};
  std::ranges::copy(first, list_.begin());
  is_listed_ = true;
}

void Chain::Cut(const law::StageWords& stage) {
  switch (law::CutOf(stage.kind)) {
    case law::kCutReshape:
      return Reshape(stage);
    case law::kCutWithin:
      return KeepWithin(stage);
    case law::kCutDepth:
      return KeepDepth(stage);
    case law::kCutFirst:
      return KeepFirst(law::FirstCount(stage));
    case law::kCutMass:
      return KeepMass(stage.a);
    case law::kCutNearest:
      return KeepNearest(stage);
    case law::kCutTerms:
      return KeepTerms(stage);
    case law::kCutHead:
      return DropHead(stage);
    case law::kCutFallOff:
      return KeepByFallOff(stage);
    case law::kCutCliff:
      return KeepBeforeCliff(stage);
  }
  SORTITION_CHECK(false);
}

void Chain::Reshape(const law::StageWords& stage) {
  shape_ = law::Reshaped(stage, shape_, FirstBits(), SumsOfKept(stage), request_.sampler_state);
  if (shape_.is_adapted) {
    scale_.adapted = &shape_;
  } else {
    scale_ = MakeRowScale(shape_, row_.max_key);
  }
}

void Chain::Rescale() {
  shape_.scale = law::ScaleFrom(FirstBits(), shape_);
  scale_ = MakeRowScale(shape_, row_.max_key);
}

namespace {

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

void Chain::List() {
  if (is_listed_) return;
  list_ = CollectNotAfter(kernels_, row_, last_, scratch_, &scratch_->kept);
  is_listed_ = true;
}

void Chain::ListIfShort() {
  const auto few = CollectIfFew(kernels_, row_, last_.key(), scratch_, &scratch_->kept);
  if (!few) return;
  list_ = few->first(kernels_.MoveNotAfter(few->data(), uint32_t(few->size()), last_));
  is_listed_ = true;
}

void Chain::KeepNotAfter(Candidate last) {
  last_ = std::max(last_, last);
  if (is_listed_) {
    list_ = list_.first(kernels_.MoveNotAfter(list_.data(), uint32_t(list_.size()), last));
  } else {
    ListIfShort();
  }
}

uint32_t Chain::FloorWithin(law::Bound bound) const { return FirstKeyWithin(bound, row_.max_key, scale_); }

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

void Chain::KeepFirst(uint32_t count) {
  if (is_listed_) {
    if (count >= list_.size()) return;
    return KeepNotAfter(kernels_.NthCandidate(list_.data(), uint32_t(list_.size()), count));
  }
  list_ = SelectFirst(kernels_, row_, count, last_.key(), scratch_, &scratch_->kept);
  list_ = list_.first(kernels_.MoveNotAfter(list_.data(), uint32_t(list_.size()), last_));
  is_listed_ = true;
}

void Chain::KeepMass(uint32_t p) {
  // A search over the row starts from a key.
  if (!is_listed_ && last_ != Candidate::Of(last_.key(), ~0u)) List();
  if (is_listed_) {
    list_ = TopPOfCandidates(kernels_, p, scale_, list_, scratch_);
    return;
  }
  const Kept kept = TopPOfRow(kernels_, p, last_.key(), row_, scale_, scratch_);
  last_ = std::max(last_, kept.last);
  list_ = kept.listed;
  is_listed_ = !list_.empty();
}

void Chain::KeepDepth(const law::StageWords& stage) {
  const law::Shape unit = law::UnitShape(shape_, FirstBits());
  const RowScale scale = MakeRowScale(unit, row_.max_key);
  const auto floor = [&](const law::StageSums& levels) {
    const law::Bound bound = law::BoundOf(stage, levels, request_.sampler_state);
    return FirstKeyWithinDepth(bound, row_.max_key, scale);
  };
  if (!is_listed_ && last_ == kLastLive && !scale.curve.is_on) {
    // Levels are off by at most a half, so the deviation lies between two nearly equal bounds. Few rows have a token
    // between the ends of the two.
    const auto [count, least, most] = SquaredDeviations(scale);
    const uint32_t first = floor({count, 0, most});
    const uint32_t last = floor({count, 0, least});
    if (const auto few = CollectIfFew(kernels_, row_, first, scratch_, &scratch_->kept)) {
      if (std::ranges::none_of(*few, [&](Candidate c) { return c.key() < last; })) {
        list_ = *few;
        is_listed_ = true;
        return;
      }
    } else if (CollectBetween(kernels_, row_, first, last, scratch_, &scratch_->leading).empty()) {
      return KeepFrom(last);
    }
  }
  KeepFrom(floor(LevelsOfKept(unit, scale)));
}

Chain::Deviations Chain::SquaredDeviations(const RowScale& scale) const {
  const double a_level = 0x1p10 / double(scale.to_fixed_point);  // in logits
  const double lowest = -0x1p21 * a_level;
  Spread spread = kernels_.SumSpread(row_, float(lowest));
  for (const Candidate& candidate : row_.edited) {
    const double x = std::max(double(std::bit_cast<float>(law::KeyBits(candidate.key()))), lowest);
    ++spread.count;
    spread.sum += x;
    spread.squares += x * x;
  }
  const double n = spread.count;
  const double about = std::max(spread.squares - spread.sum * spread.sum / n, 0.0);
  const double error = 4 * kSpreadError * spread.squares;  // 1 for the squares and 2 for the sum; 3 would do
  const double halves = 0.5 * std::sqrt(n);
  const double least = std::max(std::sqrt(std::max(about - error, 0.0)) / a_level - halves, 0.0);
  const double most = std::sqrt(about + error) / a_level + halves;
  constexpr double kCut = 2;  // error of the law's divisions and of this one
  return {spread.count, uint64_t(std::max(least * least - kCut, 0.0)), uint64_t(most * most + kCut)};
}

law::StageSums Chain::LevelsOfKept(const law::Shape& unit, const RowScale& scale) const {
  law::StageSums sums = law::NoSums();
  const auto add = [&](Candidate candidate) {
    sums = law::WithLevel(sums, law::ShapedBits(law::KeyBits(candidate.key()), unit), unit.scale);
  };
  if (is_listed_) {
    std::ranges::for_each(list_, add);
    return sums;
  }
  uint32_t* const groups = scratch_->groups.Reserve(row_.groups);
  const uint32_t count = kernels_.SelectAtLeast(row_.maxima, row_.groups, last_.key(), groups);
  const Levels levels = kernels_.SumLevels(row_, groups, count, last_, scale);
  sums = {levels.count, uint64_t(levels.sum), levels.squares};
  for (const Candidate& candidate : row_.edited) {
    if (candidate >= last_) add(candidate);
  }
  return sums;
}

void Chain::KeepTerms(const law::StageWords& stage) {
  KeepFirst(law::FirstCount(stage));
  const auto count = uint32_t(list_.size());
  const uint32_t log_sum = law::SumOctaves(SumsOfKept(stage).first);
  uint64_t* const terms = scratch_->weights.Reserve(count);
  const uint32_t* const t = Distances(list_);
  law::StageSums sums = law::NoSums();
  for (uint32_t i = 0; i < count; ++i) sums.second += terms[i] = law::EntropyTerm(t[i], log_sum);
  const law::Threshold threshold = law::ThresholdOf(stage, sums);
  if (!law::Reaches(sums.second, threshold)) return;
  const Candidate beyond = kernels_.LastReaching(list_.data(), terms, count, threshold);
  const Candidate first = *std::ranges::max_element(list_);
  KeepNotAfter(beyond == first ? first : Candidate{beyond.rank + 1});
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

void Chain::DropBefore(Candidate first) {
  if (is_listed_) {
    list_ = list_.first(
        size_t(std::ranges::partition(list_, [&](Candidate c) { return c <= first; }).begin() - list_.begin()));
  }
  MaskHead(kernels_, first, scratch_, &row_);
  Rescale();
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

const uint32_t* Chain::Distances(std::span<const Candidate> candidates) {
  uint32_t* const t = scratch_->distances.Reserve(candidates.size());
  kernels_.DistancesOfCandidates(candidates.data(), uint32_t(candidates.size()), scale_, t);
  return t;
}

const uint32_t* Chain::ExactDistances(std::span<const Candidate> candidates) {
  uint32_t* const t = scratch_->distances.Reserve(candidates.size());
  std::ranges::transform(candidates, t, [&](Candidate c) { return DistanceOfKey(c.key(), scale_); });
  return t;
}

std::span<Candidate> Chain::FirstInOrder(uint32_t number, Array<Candidate>* memory) {
  if (is_listed_) {
    const size_t count = std::min<size_t>(number, list_.size());
    const std::span<Candidate> first = {memory->Reserve(count), count};
    std::ranges::partial_sort_copy(list_, first, std::greater<>());
    return first;
  }
  const std::span<Candidate> some = SelectFirst(kernels_, row_, number, last_.key(), scratch_, memory);
  const std::span<Candidate> first = some.first(kernels_.MoveNotAfter(some.data(), uint32_t(some.size()), last_));
  std::ranges::sort(first, std::greater<>());
  return first;
}

void Chain::KeepByFallOff(const law::StageWords& stage) {
  const std::span<Candidate> leading = FirstInOrder(law::FirstCount(stage), &scratch_->leading);
  law::StageSums sums = law::NoSums();
  uint32_t t = 0;
  for (uint32_t i = 0; i + 1 < leading.size(); ++i) {
    const uint32_t next = DistanceOfKey(leading[i + 1].key(), scale_);
    if (next == law::kDead) break;
    sums = law::WithStep(sums, i, t, next);
    t = next;
  }
  KeepFirst(law::MirostatCount(sums, request_.sampler_state, request_.live_vocabulary));
}

void Chain::KeepBeforeCliff(const law::StageWords& stage) {
  constexpr uint32_t kFew = 32;
  const uint32_t all = law::FirstCount(stage);
  const law::Shape unit = law::UnitShape(shape_, FirstBits());
  const auto depth_of = [&](uint32_t key) { return law::Depth(law::ShapedBits(law::KeyBits(key), unit), unit.scale); };
  const auto tokens = [&](uint64_t decay, uint64_t range) {
    return law::MinKTokens(decay, range, stage.a, unit.scale);
  };
  // Looks at a few first tokens. The depth of a key that all `all` tokens reach bounds the range, and with it the steps
  // behind the few, whose divisors are larger. Where this leaves the number open, all are looked at.
  const uint32_t reached = is_listed_ ? 0
                                      : kernels_.LowerBoundOfNth(row_.reached, row_.groups, all, last_.key(),
                                                                 scratch_->folded.Reserve(row_.groups));
  for (const uint32_t looked : {reached > last_.key() ? kFew : all, all}) {
    const std::span<Candidate> leading = FirstInOrder(looked, &scratch_->leading);
    law::StageSums sums = law::NoSums();
    for (uint32_t i = 1; i < leading.size(); ++i) {
      const uint32_t depth = depth_of(leading[i].key());
      sums.first = std::max(sums.first, law::DecayOf(i, depth - uint32_t(sums.second)));
      sums.second = depth;
    }
    const uint32_t count = tokens(sums.first, sums.second);
    if (looked < all) {
      const uint32_t range = depth_of(reached);
      const uint64_t most = law::DecayOf(looked, range - uint32_t(sums.second));
      if (most >= sums.first || tokens(sums.first, range) != count || count > looked) continue;
    }
    list_ = {scratch_->kept.Reserve(leading.size()), std::min<size_t>(count, leading.size())};
    std::ranges::copy(leading.first(list_.size()), list_.begin());
    is_listed_ = true;
    return;
  }
}

uint64_t Chain::NextState(Candidate token) const {
  const Stage& last = request_.parameters->chain.back();
  const uint32_t t = law::Distance(law::ShapedBits(law::KeyBits(token.key()), shape_), shape_.scale);
  return law::StateAfter(law::ToStageWords(last), shape_, t, sum_, request_.sampler_state);
}

}  // namespace sortition::kernels::cpu

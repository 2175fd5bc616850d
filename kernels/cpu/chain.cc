// The stages, and what they keep.
#include "kernels/cpu/chain.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <functional>

#include "kernels/check.h"
#include "kernels/cpu/mask_head.h"
#include "kernels/cpu/select.h"
#include "kernels/cpu/sums.h"
#include "kernels/cpu/top_p.h"
#include "kernels/law/row_law.h"

namespace sortition::kernels::cpu {
namespace {

constexpr uint32_t kLeading = 128;      // groups, about, that typical-p looks at first
constexpr uint32_t kNearest = ~0u - 1;  // no candidate's rank may be the largest number there is

}  // namespace

Chain::Chain(const Kernels& kernels, const RowRequest& request, const Row& row, Scratch* scratch)
    : kernels_(kernels), request_(request), scratch_(scratch), row_(row), shape_(law::PlainShape(FirstBits())) {
  scale_ = ScaleOf(shape_, row_.max_key);
}

void Chain::Run() {
  for (const Stage& stage : request_.parameters->chain) Apply(stage);
  if (KeepsSamplerState(request_.parameters->chain) && !shape_.is_adapted) sum_ = SumOfKept();
}

Kept Chain::kept() const {
  if (is_listed_) return Kept::Of(list_);
  Kept kept;
  kept.last = last_;
  return kept;
}

void Chain::Apply(const Stage& stage) {
  const auto [a, b, c, d] = stage.operands;
  switch (stage.kind) {
    case StageKind::kTemperature:
      return SetTemperature({a, int32_t(b), c});
    case StageKind::kMinP:
      return KeepWithin(a);
    case StageKind::kTopK:
      return KeepFirst(a);
    case StageKind::kTopP:
      return KeepTopP(a);
    case StageKind::kTypicalP:
      return KeepTypical(a);
    case StageKind::kTopNSigma:
      return KeepNSigma(a);
    case StageKind::kEpsilonCutoff:
      return KeepWithin(law::EpsilonBound(SumOfKept(), a));
    case StageKind::kEtaCutoff: {
      const Moments m = MomentsOfKept(MomentsWanted::kMoment);
      return KeepWithin(law::EtaBound(m.sum, m.moment, a));
    }
    case StageKind::kTopA:
      return KeepWithin(law::TopABound(SumOfKept(), a));
    case StageKind::kTopH:
      return KeepTopH(a);
    case StageKind::kPLess: {
      const Moments m = MomentsOfKept(MomentsWanted::kSquare);
      return KeepWithin(law::PLessBound(m.sum, m.square));
    }
    case StageKind::kXtc:
      return DropTop(a, b);
    case StageKind::kDynamicTemperature: {
      const Moments m = MomentsOfKept(MomentsWanted::kMomentAndCount);
      temperature_ = law::DynamicTemperature(m.count, m.sum, m.moment, a, b, c);
      return SetTemperature(law::TemperatureOf(temperature_));
    }
    case StageKind::kQuadraticSmoothing:
      shape_ = law::SmoothedShape(shape_, FirstBits(), a, b);
      return Rescale();
    case StageKind::kMirostat1:
      return KeepMirostat1(c);
    case StageKind::kMirostat2:
      return KeepWithin(law::MirostatBound(SumOfKept(), request_.sampler_state));
    case StageKind::kAdaptiveP:
      shape_.share = law::ShareOf(SumOfKept());
      shape_.target = law::AdaptedTarget(a, uint32_t(request_.sampler_state));
      shape_.is_adapted = true;
      scale_.adapted = &shape_;
      return;
  }
  __builtin_unreachable();
}

void Chain::Rescale() {
  shape_.scale = law::ScaleFrom(FirstBits(), shape_);
  scale_ = ScaleOf(shape_, row_.max_key);
}

void Chain::SetTemperature(const law::Temperature& temperature) {
  shape_.temperature = temperature;
  Rescale();
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

void Chain::List() {
  if (is_listed_) return;
  list_ = CollectNotAfter(kernels_, row_, last_, scratch_, &scratch_->kept);
  is_listed_ = true;
}

void Chain::ListIfShort() {
  if (is_listed_) return;
  uint32_t* const groups = scratch_->groups.Reserve(row_.groups);
  const size_t count = kernels_.SelectAtLeast(row_.maxima, row_.groups, last_.key(), groups);
  if (count * law::kGroupSize <= Kept::kMostListed) List();
}

void Chain::KeepNotAfter(Candidate last) {
  last_ = std::max(last_, last);
  if (is_listed_) {
    list_ = list_.first(kernels_.MoveNotAfter(list_.data(), uint32_t(list_.size()), last));
  } else {
    ListIfShort();
  }
}

void Chain::KeepWithin(uint32_t bound) {
  if (!scale_.curve.is_on) return KeepFrom(FirstKeyWithin(bound, scale_.scale));
  KeepFrom(FirstKeyWhere(row_.max_key, [&](uint32_t bits) {
    const uint32_t t = DistanceOfKey(law::Key(bits), scale_);
    return t != law::kDead && t <= bound;
  }));
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

void Chain::KeepTopP(uint32_t p) {
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

void Chain::KeepNSigma(uint32_t log_n) {
  law::Shape unit = shape_;
  unit.temperature = law::UnitTemperature();
  unit.scale = law::ScaleFrom(FirstBits(), unit);
  const RowScale scale = ScaleOf(unit, row_.max_key);
  const auto floor = [&](uint32_t count, uint64_t levels, uint64_t squares) {
    const uint32_t bound = law::SigmaBound(count, levels, squares, log_n);
    return FirstKeyWhere(row_.max_key,
                         [&](uint32_t bits) { return law::Depth(law::ShapedBits(bits, unit), unit.scale) <= bound; });
  };
  if (!is_listed_ && last_ == kLastLive && !scale.curve.is_on) {
    // The deviation of the levels, which are off by a half at most, lies between two nearly equal ones. Seldom does a
    // token lie between what those keep.
    const auto [count, least, most] = SquaredDeviations(scale);
    const uint32_t first = floor(count, 0, most);
    const uint32_t last = floor(count, 0, least);
    if (first == last || CollectBetween(kernels_, row_, first, last, scratch_, &scratch_->leading).empty())
      return KeepFrom(last);
  }
  const Levels levels = LevelsOfKept(unit, scale);
  KeepFrom(floor(levels.count, uint64_t(levels.sum), levels.squares));
}

Chain::Deviations Chain::SquaredDeviations(const RowScale& scale) const {
  uint32_t* const groups = scratch_->groups.Reserve(row_.groups);
  const uint32_t listed = kernels_.SelectAtLeast(row_.maxima, row_.groups, last_.key(), groups);
  const double a_level = 0x1p10 / double(scale.to_fixed_point);  // in logits
  const double lowest = -0x1p21 * a_level;
  Spread spread = kernels_.SumSpread(row_, groups, listed, float(lowest));
  for (const Candidate& candidate : row_.edited) {
    const double x = std::max(double(std::bit_cast<float>(law::KeyBits(candidate.key()))), lowest);
    ++spread.count;
    spread.sum += x;
    spread.squares += x * x;
  }
  const double n = spread.count;
  const double about = std::max(spread.squares - spread.sum * spread.sum / n, 0.0);
  const double error = 4 * kSpreadError * spread.squares;  // 3 times: of the squares, and twice of the sum's
  const double halves = 0.5 * std::sqrt(n);
  const double least = std::max(std::sqrt(std::max(about - error, 0.0)) / a_level - halves, 0.0);
  const double most = std::sqrt(about + error) / a_level + halves;
  constexpr double kCut = 2;  // off an integer, by the law's divisions and by this one's
  return {spread.count, uint64_t(std::max(least * least - kCut, 0.0)), uint64_t(most * most + kCut)};
}

Levels Chain::LevelsOfKept(const law::Shape& unit, const RowScale& scale) const {
  Levels levels;
  const auto add = [&](Candidate candidate) {
    const auto level = int32_t(law::Level(law::ShapedBits(law::KeyBits(candidate.key()), unit), unit.scale));
    ++levels.count;
    levels.sum += level;
    levels.squares += uint64_t(int64_t{level} * level);
  };
  if (is_listed_) {
    std::ranges::for_each(list_, add);
    return levels;
  }
  uint32_t* const groups = scratch_->groups.Reserve(row_.groups);
  const uint32_t count = kernels_.SelectAtLeast(row_.maxima, row_.groups, last_.key(), groups);
  levels = kernels_.SumLevels(row_, groups, count, last_, scale);
  for (const Candidate& candidate : row_.edited) {
    if (candidate >= last_) add(candidate);
  }
  return levels;
}

void Chain::KeepTopH(uint32_t h) {
  KeepFirst(law::kTopHTokens);
  const auto count = uint32_t(list_.size());
  const uint32_t log_sum = law::SumOctaves(SumOfKept());
  uint64_t* const terms = scratch_->weights.Reserve(count);
  const uint32_t* const t = Distances(list_);
  uint64_t sum = 0;
  for (uint32_t i = 0; i < count; ++i) sum += terms[i] = law::EntropyTerm(t[i], log_sum);
  const uint64_t limit = law::TopHLimit(sum, h);
  if (sum <= limit) return;
  // The first that takes the sum beyond the limit, and all after it, go; but not the first of all.
  const Candidate beyond = kernels_.LastReaching(list_.data(), terms, count, limit + 1);
  const Candidate first = *std::ranges::max_element(list_);
  KeepNotAfter(beyond == first ? first : Candidate{beyond.rank + 1});
}

void Chain::DropTop(uint32_t chance, uint32_t threshold) {
  if (!law::XtcActs(law::KeyOf(request_.noise), chance)) return;
  const uint32_t bound = law::EpsilonBound(SumOfKept(), threshold);
  const auto reaches = [&](Candidate c) {
    const uint32_t t = DistanceOfKey(c.key(), scale_);
    return t != law::kDead && t <= bound;
  };
  // The last token that reaches the threshold; those are the first ones.
  const uint32_t floor =
      FirstKeyWhere(row_.max_key, [&](uint32_t bits) { return reaches(Candidate::Of(law::Key(bits), 0)); });
  if (is_listed_) {
    Candidate last = *std::ranges::max_element(list_);
    for (const Candidate& candidate : list_) {
      if (candidate.key() >= floor) last = std::min(last, candidate);
    }
    return DropBefore(last);
  }
  const Candidate end = std::max(last_, Candidate::Of(floor, ~0u));
  DropBefore(*std::ranges::min_element(CollectNotAfter(kernels_, row_, end, scratch_, &scratch_->leading)));
}

void Chain::DropBefore(Candidate first) {
  if (is_listed_) {
    list_ = list_.first(
        size_t(std::ranges::partition(list_, [&](Candidate c) { return c <= first; }).begin() - list_.begin()));
  }
  MaskHead(kernels_, first, scratch_, &row_);
  Rescale();
}

void Chain::KeepTypical(uint32_t p) {
  const Moments m = MomentsOfKept(MomentsWanted::kMoment);
  const uint32_t mean = law::MeanDistance(m.sum, m.moment);
  const uint64_t threshold = law::TopPThreshold(m.sum, p);
  // Leading tokens, more of them until they hold all that lie as near to the mean as is needed. Whoever is not among
  // them is as far as `edge` at least.
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
      leading = CollectBetween(kernels_, row_, from, kNoCeiling, scratch_, &scratch_->leading);
      leading = leading.first(kernels_.MoveNotAfter(leading.data(), uint32_t(leading.size()), last_));
      if (from > last_.key()) edge = DistanceOfKey(from, scale_);
    }
    const auto count = uint32_t(leading.size());
    t = Distances(leading);
    // By how near they are: nearer ones come first in this order.
    Candidate* const nearest = scratch_->nearest.Reserve(count);
    uint64_t* const weights = scratch_->weights.Reserve(count);
    kernels_.WeighCandidates(leading.data(), count, scale_, weights);
    uint64_t sum = 0;
    for (uint32_t i = 0; i < count; ++i) {
      const uint32_t gap = t[i] > mean ? t[i] - mean : mean - t[i];
      nearest[i] = Candidate::Of(kNearest - gap, i);
      if (t[i] >= edge || (edge != law::kDead && gap >= edge - std::min(edge, mean))) weights[i] = 0;
      sum += weights[i];
    }
    if (sum < threshold) continue;
    farthest = kernels_.LastReaching(nearest, weights, count, threshold);
    break;
  }
  const uint32_t gap = kNearest - farthest.key();
  const uint32_t low = mean > gap ? mean - gap : 0;
  Candidate first = {0};
  Candidate head = {0};
  for (size_t i = 0; i < leading.size(); ++i) {
    head = std::max(head, leading[i]);
    if (t[i] >= low) first = std::max(first, leading[i]);
  }
  KeepWithin(uint32_t(std::min<uint64_t>(uint64_t{mean} + gap, law::kFarthest)));
  if (first != head) DropBefore(first);
}

const uint32_t* Chain::Distances(std::span<const Candidate> candidates) {
  uint32_t* const t = scratch_->distances.Reserve(candidates.size());
  kernels_.DistancesOfCandidates(candidates.data(), uint32_t(candidates.size()), scale_, t);
  return t;
}

void Chain::KeepMirostat1(uint32_t m) {
  std::span<Candidate> leading;
  Candidate* const copy = scratch_->leading.Reserve(m);
  if (is_listed_) {
    leading = {copy, std::min<size_t>(m, list_.size())};
    std::ranges::partial_sort_copy(list_, leading, std::greater<>());
  } else {
    leading = SelectFirst(kernels_, row_, m, last_.key(), scratch_, &scratch_->leading);
    leading = leading.first(kernels_.MoveNotAfter(leading.data(), uint32_t(leading.size()), last_));
    std::ranges::sort(leading, std::greater<>());
  }
  uint64_t terms = 0;
  uint64_t squares = 0;
  uint32_t t = 0;
  uint32_t i = 0;
  for (; i + 1 < leading.size(); ++i) {
    const uint32_t next = DistanceOfKey(leading[i + 1].key(), scale_);
    if (next == law::kDead) break;
    terms += law::RankTerm(i, next - t);
    squares += law::RankSquare(i);
    t = next;
  }
  if (i == 0) return KeepFirst(1);
  KeepFirst(law::MirostatTokens(law::FallOff(terms, squares), request_.sampler_state, request_.live_vocabulary));
}

uint64_t Chain::NextState(Candidate token) const {
  if (!KeepsSamplerState(request_.parameters->chain)) return 0;
  const Stage& stage = request_.parameters->chain.back();
  const auto [a, b, c, d] = stage.operands;
  const uint32_t t = law::Distance(law::ShapedBits(law::KeyBits(token.key()), shape_), shape_.scale);
  if (stage.kind != StageKind::kAdaptiveP) return law::NextMu(request_.sampler_state, sum_, t, a, b);
  return law::NextAverage(uint32_t(request_.sampler_state), law::ProbabilityOf(law::Weight(t), shape_.share), b);
}

}  // namespace sortition::kernels::cpu

// The stages' loops and searches.
#include "kernels/cpu/chain/chain_run.h"

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

void Chain::DropBefore(Candidate first) {
  if (is_listed_) {
    list_ = list_.first(
        size_t(std::ranges::partition(list_, [&](Candidate c) { return c <= first; }).begin() - list_.begin()));
  }
  MaskHead(kernels_, first, scratch_, &row_);
  Rescale();
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

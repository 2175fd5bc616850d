// Each stage sees what the stage before it left: the kept tokens in order, and the shape.
#include "kernels/law/reference_chain.h"

#include <algorithm>

#include "kernels/check.h"
#include "kernels/law/row_law.h"

namespace sortition::law {

using kernels::Stage;
using kernels::TokenBits;

ReferenceChain::ReferenceChain(const kernels::RowRequest& request, std::vector<TokenBits> tokens)
    : request_(request), kept_(std::move(tokens)), shape_(PlainShape(kept_[0].bits)) {}

void ReferenceChain::Run() {
  for (const Stage& stage : request_.parameters->chain) {
    Apply(WordsOf(stage));
    SORTITION_CHECK(!kept_.empty());
    shape_.scale = ScaleFrom(kept_[0].bits, shape_);
  }
}

u32 ReferenceChain::DistanceOf(const TokenBits& token) const {
  return Distance(ShapedBits(token.bits, shape_), shape_.scale);
}

StageSums ReferenceChain::SumsOfKept(const StageWords& stage) const {
  const u32 what = SumsOf(stage.kind);
  StageSums sums = NoSums();
  if (what == kSumFallOff) {
    for (size_t i = 0; i + 1 < std::min<size_t>(stage.c, kept_.size()); ++i) {
      const u32 next = DistanceOf(kept_[i + 1]);
      if (next == kDead) break;
      sums = WithStep(sums, u32(i), DistanceOf(kept_[i]), next);
    }
    return sums;
  }
  const Shape unit = UnitShape(shape_, kept_[0].bits);
  for (const TokenBits& token : kept_) {
    sums = what == kSumLevels ? WithLevel(sums, ShapedBits(token.bits, unit), unit.scale)
                              : WithDistance(sums, what, DistanceOf(token));
  }
  return sums;
}

void ReferenceChain::Apply(const StageWords& stage) {
  if (!ActsInDraw(stage, KeyOf(request_.noise))) return;
  const u64 state = request_.sampler_state;
  const StageSums sums = SumsOfKept(stage);
  switch (CutOf(stage.kind)) {
    case kCutReshape:
      shape_ = Reshaped(stage, shape_, kept_[0].bits, sums, state);
      return;
    case kCutWithin:
      return KeepWithin(BoundOf(stage, sums, state));
    case kCutDepth:
      return KeepDepth(BoundOf(stage, sums, state));
    case kCutFirst:
      return KeepFirst(FirstCount(stage));
    case kCutMass:
      return KeepMass(ThresholdOf(stage, sums));
    case kCutNearest:
      return KeepNearest(MeanDistance(sums.first, sums.second), ThresholdOf(stage, sums));
    case kCutTerms:
      return KeepTerms(stage);
    case kCutHead:
      return DropHead(BoundOf(stage, sums, state));
    case kCutFallOff:
      return KeepFirst(MirostatCount(sums, state, request_.live_vocabulary));
  }
  SORTITION_CHECK(false);
}

template <typename Goes>
void ReferenceChain::Drop(Goes goes) {
  std::erase_if(kept_, goes);
}

void ReferenceChain::KeepFirst(size_t count) { kept_.resize(std::min(count, kept_.size())); }

void ReferenceChain::KeepWithin(Bound bound) {
  Drop([&](const TokenBits& token) { return !IsWithin(DistanceOf(token), bound); });
}

void ReferenceChain::KeepDepth(Bound bound) {
  const Shape unit = UnitShape(shape_, kept_[0].bits);
  Drop([&](const TokenBits& token) { return !IsWithin(Depth(ShapedBits(token.bits, unit), unit.scale), bound); });
}

void ReferenceChain::KeepMass(Threshold threshold) {
  u64 sum = 0;
  size_t count = 0;
  while (!Reaches(sum, threshold)) sum += WeightOf(kept_[count++]);
  KeepFirst(count);
}

void ReferenceChain::KeepNearest(u32 mean, Threshold threshold) {
  const auto gap = [&](const TokenBits& token) { return TypicalGap(DistanceOf(token), mean); };
  std::vector<TokenBits> nearest = kept_;
  std::sort(nearest.begin(), nearest.end(), [&](auto& x, auto& y) { return gap(x) < gap(y); });
  u64 sum = 0;
  size_t count = 0;
  while (!Reaches(sum, threshold)) sum += WeightOf(nearest[count++]);
  const Window window = TypicalWindow(mean, gap(nearest[count - 1]));
  Drop([&](const TokenBits& token) {
    const u32 t = DistanceOf(token);
    return !IsWithin(t, window.bound) || IsInHead(t, window);
  });
}

void ReferenceChain::KeepTerms(const StageWords& stage) {
  KeepFirst(FirstCount(stage));
  const u32 log_sum = SumOctaves(SumsOfKept(stage).first);
  const auto term = [&](const TokenBits& token) { return EntropyTerm(DistanceOf(token), log_sum); };
  StageSums terms = NoSums();
  for (const TokenBits& token : kept_) terms.second += term(token);
  const Threshold threshold = ThresholdOf(stage, terms);
  size_t count = 0;
  for (u64 sum = 0; count < kept_.size(); ++count) {
    sum += term(kept_[count]);
    if (Reaches(sum, threshold)) break;
  }
  KeepFirst(std::max<size_t>(count, 1));
}

void ReferenceChain::DropHead(Bound bound) {
  const auto end =
      std::ranges::find_if(kept_, [&](const TokenBits& token) { return !IsWithin(DistanceOf(token), bound); });
  kept_.erase(kept_.begin(), end - 1);
}

u64 ReferenceChain::NextState(u32 token) const {
  const std::vector<Stage>& chain = request_.parameters->chain;
  if (!kernels::KeepsSamplerState(chain)) return 0;
  const auto chosen = std::ranges::find(kept_, token, &TokenBits::token);
  if (chosen == kept_.end()) return request_.sampler_state;
  u64 sum = 0;
  for (const TokenBits& kept : kept_) sum += WeightOf(kept);
  return StateAfter(WordsOf(chain.back()), shape_, DistanceOf(*chosen), sum, request_.sampler_state);
}

}  // namespace sortition::law

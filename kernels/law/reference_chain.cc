// Each stage sees what the one before it left: the kept tokens in order, and the shape.
#include "kernels/law/reference_chain.h"

#include <algorithm>

#include "kernels/check.h"
#include "kernels/law/row_law.h"

namespace sortition::law {

using kernels::Stage;
using kernels::StageKind;
using kernels::TokenBits;

ReferenceChain::ReferenceChain(const kernels::RowRequest& request, std::vector<TokenBits> tokens)
    : request_(request), kept_(std::move(tokens)), shape_(PlainShape(kept_[0].bits)) {}

void ReferenceChain::Run() {
  for (const Stage& stage : request_.parameters->chain) {
    Apply(stage);
    Rescale();
  }
}

u32 ReferenceChain::DistanceOf(const TokenBits& token) const {
  return Distance(ShapedBits(token.bits, shape_), shape_.scale);
}

ReferenceChain::Moments ReferenceChain::MomentsOfKept() const {
  Moments moments;
  for (const TokenBits& token : kept_) {
    const u32 t = DistanceOf(token);
    moments.sum += Weight(t);
    moments.moment += Moment(t);
    moments.square += SquaredWeight(t);
  }
  return moments;
}

void ReferenceChain::Apply(const Stage& stage) {
  const auto [a, b, c, d] = stage.operands;
  const Moments m = MomentsOfKept();
  switch (stage.kind) {
    case StageKind::kTemperature:
      shape_.temperature = {a, i32(b), c};
      return;
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
      return KeepWithin(EpsilonBound(m.sum, a));
    case StageKind::kEtaCutoff:
      return KeepWithin(EtaBound(m.sum, m.moment, a));
    case StageKind::kTopA:
      return KeepWithin(TopABound(m.sum, a));
    case StageKind::kTopH:
      return KeepTopH(a);
    case StageKind::kPLess:
      return KeepWithin(PLessBound(m.sum, m.square));
    case StageKind::kXtc:
      return DropTop(a, b);
    case StageKind::kDynamicTemperature:
      temperature_ = DynamicTemperature(u32(kept_.size()), m.sum, m.moment, a, b, c);
      shape_.temperature = TemperatureOf(temperature_);
      return;
    case StageKind::kQuadraticSmoothing:
      shape_ = SmoothedShape(shape_, kept_[0].bits, a, b);
      return;
    case StageKind::kMirostat1:
      return KeepMirostat1(c);
    case StageKind::kMirostat2:
      return KeepWithin(MirostatBound(m.sum, request_.sampler_state));
    case StageKind::kAdaptiveP:
      shape_.share = ShareOf(m.sum);
      shape_.target = AdaptedTarget(a, u32(request_.sampler_state));
      shape_.is_adapted = true;
      return;
  }
}

void ReferenceChain::KeepBetween(u64 low, u64 high) {
  std::erase_if(kept_, [&](const TokenBits& token) {
    const u32 t = DistanceOf(token);
    return t == kDead || t < low || t > high;
  });
  SORTITION_CHECK(!kept_.empty());
}

void ReferenceChain::KeepFirst(size_t count) { kept_.resize(std::min(count, kept_.size())); }

void ReferenceChain::KeepTopP(u32 p) {
  const u64 threshold = TopPThreshold(MomentsOfKept().sum, p);
  u64 sum = 0;
  size_t count = 0;
  while (sum < threshold) sum += Weight(DistanceOf(kept_[count++]));
  KeepFirst(count);
}

void ReferenceChain::KeepTypical(u32 p) {
  const Moments m = MomentsOfKept();
  const u32 mean = MeanDistance(m.sum, m.moment);
  const u64 threshold = TopPThreshold(m.sum, p);
  const auto gap = [&](const TokenBits& token) {
    const u32 t = DistanceOf(token);
    return t > mean ? t - mean : mean - t;
  };
  std::vector<TokenBits> nearest = kept_;
  std::sort(nearest.begin(), nearest.end(), [&](auto& x, auto& y) { return gap(x) < gap(y); });
  u64 sum = 0;
  size_t count = 0;
  while (sum < threshold) sum += Weight(DistanceOf(nearest[count++]));
  const u64 farthest = gap(nearest[count - 1]);
  KeepBetween(mean > farthest ? mean - farthest : 0, mean + farthest);
}

void ReferenceChain::KeepNSigma(u32 log_n) {
  const Scale unit = ScaleOf(ShapedBits(kept_[0].bits, shape_), UnitTemperature());
  int64_t levels = 0;
  u64 squares = 0;
  for (const TokenBits& token : kept_) {
    const int64_t level = i32(Level(ShapedBits(token.bits, shape_), unit));
    levels += level;
    squares += u64(level * level);
  }
  const u32 bound = SigmaBound(u32(kept_.size()), u64(levels), squares, log_n);
  std::erase_if(kept_, [&](const TokenBits& token) { return Depth(ShapedBits(token.bits, shape_), unit) > bound; });
}

void ReferenceChain::KeepTopH(u32 h) {
  KeepFirst(kTopHTokens);
  const u32 log_sum = SumOctaves(MomentsOfKept().sum);
  u64 terms = 0;
  for (const TokenBits& token : kept_) terms += EntropyTerm(DistanceOf(token), log_sum);
  const u64 limit = TopHLimit(terms, h);
  size_t count = 0;
  for (u64 sum = 0; count < kept_.size(); ++count) {
    sum += EntropyTerm(DistanceOf(kept_[count]), log_sum);
    if (sum > limit) break;
  }
  KeepFirst(std::max<size_t>(count, 1));
}

void ReferenceChain::DropTop(u32 chance, u32 threshold) {
  if (!XtcActs(KeyOf(request_.noise), chance)) return;
  const u32 bound = EpsilonBound(MomentsOfKept().sum, threshold);
  const auto reach = std::ranges::find_if(kept_, [&](const TokenBits& token) { return DistanceOf(token) > bound; });
  kept_.erase(kept_.begin(), reach - 1);
}

void ReferenceChain::KeepMirostat1(u32 m) {
  u64 terms = 0;
  u64 squares = 0;
  size_t i = 0;
  for (; i + 1 < std::min<size_t>(m, kept_.size()) && DistanceOf(kept_[i + 1]) != kDead; ++i) {
    terms += RankTerm(u32(i), DistanceOf(kept_[i + 1]) - DistanceOf(kept_[i]));
    squares += RankSquare(u32(i));
  }
  if (i == 0) return KeepFirst(1);
  KeepFirst(MirostatTokens(FallOff(terms, squares), request_.sampler_state, request_.live_vocabulary));
}

u64 ReferenceChain::NextState(u32 token) const {
  const std::vector<Stage>& chain = request_.parameters->chain;
  if (!kernels::KeepsSamplerState(chain)) return 0;
  const auto [a, b, c, d] = chain.back().operands;
  const auto chosen = std::ranges::find(kept_, token, &TokenBits::token);
  if (chosen == kept_.end()) return request_.sampler_state;
  const u32 t = DistanceOf(*chosen);
  if (chain.back().kind != StageKind::kAdaptiveP) return NextMu(request_.sampler_state, MomentsOfKept().sum, t, a, b);
  return NextAverage(u32(request_.sampler_state), ProbabilityOf(Weight(t), shape_.share), b);
}

}  // namespace sortition::law

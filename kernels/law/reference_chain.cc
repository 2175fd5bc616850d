// Each stage works on the result of the stage before it: the kept tokens in order, and the shape.
#include "kernels/law/reference_chain.h"

#include <algorithm>

#include "kernels/check.h"
#include "kernels/law/row_law.h"

namespace sortition::law {

using kernels::RowParameters;
using kernels::RowRequiredReason;
using kernels::Stage;
using kernels::TokenBits;

std::vector<StageWords> StagesOf(const RowParameters& parameters) {
  std::vector<StageWords> stages;
  for (const Stage& stage : parameters.chain) stages.push_back(ToStageWords(stage));
  if (!stages.empty()) return stages;
  stages.push_back({kStageTemperature, parameters.multiplier, u32(parameters.exponent), parameters.window, 0});
  if (parameters.min_p_distance != RowParameters::kMinPOff) {
    stages.push_back({kStageMinP, parameters.min_p_distance, 0, 0, 0});
  }
  if (parameters.top_k != 0) stages.push_back({kStageTopK, parameters.top_k, 0, 0, 0});
  if (parameters.top_p != 0) stages.push_back({kStageTopP, parameters.top_p, 0, 0, 0});
  return stages;
}

ReferenceChain::ReferenceChain(const kernels::RowRequest& request, std::vector<TokenBits> tokens,
                               std::optional<Rest> rest)
    : request_(request),
      stages_(StagesOf(*request.parameters)),
      kept_(std::move(tokens)),
      rest_(std::move(rest)),
      shape_(PlainShape(kept_[0].bits)) {}

std::optional<RowRequiredReason> ReferenceChain::Run() {
  for (const StageWords& stage : stages_) {
    if (const Undecided undecided = Apply(stage)) return undecided;
    SORTITION_CHECK(!kept_.empty());
    shape_.scale = ScaleFrom(kept_[0].bits, shape_);
  }
  return {};
}

RestWeights WeightsOfRest(const RowParameters& parameters, const Temperature& temperature, const Rest& rest) {
  const auto is_it = [&](const Temperature& other) {
    return temperature.multiplier == other.multiplier && temperature.exponent == other.exponent &&
           temperature.window == other.window;
  };
  if (is_it(UnitTemperature()) && (rest.unit.all || rest.unit.most)) return rest.unit;
  for (const StageWords& stage : StagesOf(parameters)) {
    if (stage.kind == kStageTemperature && is_it({stage.a, i32(stage.b), stage.c})) return rest.own;
  }
  return {};
}

std::optional<RowRequiredReason> ReferenceChain::SumKept(const StageWords& stage, StageSums* sums) const {
  const u32 what = SumsOf(stage.kind);
  *sums = NoSums();
  if (what == kSumNothing) return {};
  if (what == kSumFallOff) {
    for (size_t i = 0; i + 1 < stage.c; ++i) {
      if (i + 1 >= kept_.size()) return rest_ ? Undecided(RowRequiredReason::kCut) : std::nullopt;
      const u32 next = DistanceOf(kept_[i + 1]);
      if (next == kDead) return {};
      *sums = WithStep(*sums, u32(i), DistanceOf(kept_[i]), next);
    }
    return {};
  }
  if (rest_) {
    if (what != kSumWeights) return RowRequiredReason::kRow;
    if (shape_.is_curved || shape_.dynamic != 0) return RowRequiredReason::kSums;
    const std::optional<u64> sum = WeightsOfRest(*request_.parameters, shape_.temperature, *rest_).all;
    if (!sum) return RowRequiredReason::kSums;
    sums->first = *sum;
    return {};
  }
  const Shape unit = UnitShape(shape_, kept_[0].bits);
  for (const TokenBits& token : kept_) {
    *sums = what == kSumLevels ? WithLevel(*sums, ShapedBits(token.bits, unit), unit.scale)
                               : WithDistance(*sums, what, DistanceOf(token));
  }
  return {};
}

std::optional<RowRequiredReason> ReferenceChain::Apply(const StageWords& stage) {
  if (!ActsInDraw(stage, ToDrawKey(request_.noise))) return {};
  if (LeastOfFirst(stage) <= 1) return Cut(stage);
  const std::vector<TokenBits> kept = kept_;
  const std::optional<Rest> rest = rest_;
  if (const Undecided undecided = Cut(stage)) return undecided;
  if (rest_ || kept_.size() >= LeastOfFirst(stage)) return {};
  kept_ = kept;
  rest_ = rest;
  return KeepFirst(LeastOfFirst(stage));
}

std::optional<RowRequiredReason> ReferenceChain::Cut(const StageWords& stage) {
  const u64 state = request_.sampler_state;
  if (CutOf(stage.kind) == kCutTerms) return KeepTerms(stage);
  if (CutOf(stage.kind) == kCutCliff) return KeepBeforeCliff(stage);
  StageSums sums;
  if (const Undecided undecided = SumKept(stage, &sums)) {
    return CutOf(stage.kind) == kCutMass ? KeepMassWithin(stage, undecided) : undecided;
  }
  switch (CutOf(stage.kind)) {
    case kCutReshape:
      shape_ = Reshaped(stage, shape_, kept_[0].bits, sums, state);
      return {};
    case kCutWithin: {
      const Bound bound = BoundOf(stage, sums, state);
      KeepWhile([&](u32 bits) { return IsWithin(DistanceAt(bits), bound); });
      return {};
    }
    case kCutDepth:
      KeepDepth(BoundOf(stage, sums, state));
      return {};
    case kCutFirst:
      return KeepFirst(FirstCount(stage));
    case kCutMass:
      return KeepMass(ThresholdOf(stage, sums));
    case kCutNearest:
      KeepNearest(MeanDistance(sums.first, sums.second), ThresholdOf(stage, sums), LeastCount(stage));
      return {};
    case kCutHead:
      if (!HasHead(stage, sums)) return {};
      return DropHead(BoundOf(stage, sums, state), LeastCount(stage));
    case kCutFallOff:
      return KeepFirst(MirostatCount(sums, state, request_.live_vocabulary));
  }
  SORTITION_CHECK(false);
}

std::optional<RowRequiredReason> ReferenceChain::KeepFirst(size_t count) {
  if (rest_ && count > kept_.size()) return RowRequiredReason::kCut;
  kept_.resize(std::min(count, kept_.size()));
  rest_.reset();
  return {};
}

// Keeps the tokens before the first one that fails the test. If `is_kept` fails for some bits, it fails for all smaller
// ones.
template <typename IsKept>
void ReferenceChain::KeepWhile(IsKept is_kept) {
  const auto end = std::ranges::find_if(kept_, [&](const TokenBits& token) { return !is_kept(token.bits); });
  if (end != kept_.end() || (rest_ && !is_kept(rest_->bits))) rest_.reset();
  if (rest_) rest_->ForgetSums();  // some of it may be dropped
  kept_.erase(end, kept_.end());
}

void ReferenceChain::KeepDepth(Bound bound) {
  const Shape unit = UnitShape(shape_, kept_[0].bits);
  KeepWhile([&](u32 bits) { return IsWithin(Depth(ShapedBits(bits, unit), unit.scale), bound); });
}

std::optional<RowRequiredReason> ReferenceChain::KeepMass(Threshold threshold) {
  u64 sum = 0;
  size_t count = 0;
  while (!Reaches(sum, threshold)) {
    if (count == kept_.size()) return RowRequiredReason::kCut;
    sum += WeightOf(kept_[count++]);
  }
  return KeepFirst(count);
}

u64 ReferenceChain::MostOfRest() const {
  const u64 by_number = rest_->tokens * Weight(DistanceAt(rest_->bits));
  if (shape_.is_curved || shape_.dynamic != 0) return by_number;
  return std::min(by_number, WeightsOfRest(*request_.parameters, shape_.temperature, *rest_).most.value_or(by_number));
}

std::optional<RowRequiredReason> ReferenceChain::KeepMassWithin(const StageWords& stage, Undecided reason) {
  StageSums least = NoSums();
  for (const TokenBits& token : kept_) least.first += WeightOf(token);
  StageSums most = least;
  most.first += MostOfRest();
  const Threshold high = ThresholdOf(stage, most);
  u64 before = 0;  // the last token that is kept where the sum is `most`
  u64 sum = 0;
  size_t count = 0;
  for (; !Reaches(sum, high); ++count) {
    if (count == kept_.size()) return reason;
    before = sum;
    sum += WeightOf(kept_[count]);
  }
  return Reaches(before, ThresholdOf(stage, least)) ? reason : KeepFirst(count);
}

// No compact row states the sums that this needs. Dead tokens are the farthest and are not kept.
void ReferenceChain::KeepNearest(u32 mean, Threshold threshold, u32 least) {
  const auto gap = [&](const TokenBits& token) { return TypicalGap(DistanceOf(token), mean); };
  std::vector<TokenBits> nearest = kept_;
  std::sort(nearest.begin(), nearest.end(), [&](auto& x, auto& y) { return gap(x) < gap(y); });
  u64 sum = 0;
  size_t count = 0;
  while (!Reaches(sum, threshold)) sum += WeightOf(nearest[count++]);
  while (count < std::min<size_t>(least, nearest.size()) && DistanceOf(nearest[count]) != kDead) ++count;
  const Window window = TypicalWindow(mean, gap(nearest[count - 1]));
  std::erase_if(kept_, [&](const TokenBits& token) {
    const u32 t = DistanceOf(token);
    return !IsWithin(t, window.bound) || IsInHead(t, window);
  });
}

std::optional<RowRequiredReason> ReferenceChain::KeepTerms(const StageWords& stage) {
  if (const Undecided undecided = KeepFirst(FirstCount(stage))) return undecided;
  u64 weights = 0;
  for (const TokenBits& token : kept_) weights += WeightOf(token);
  const u32 log_sum = SumOctaves(weights);
  const auto term = [&](const TokenBits& token) { return EntropyTerm(DistanceOf(token), log_sum); };
  StageSums terms = NoSums();
  for (const TokenBits& token : kept_) terms.second += term(token);
  const Threshold threshold = ThresholdOf(stage, terms);
  size_t count = 0;
  for (u64 sum = 0; count < kept_.size(); ++count) {
    sum += term(kept_[count]);
    if (Reaches(sum, threshold)) break;
  }
  return KeepFirst(std::max<size_t>(count, 1));
}

std::optional<RowRequiredReason> ReferenceChain::KeepBeforeCliff(const StageWords& stage) {
  if (rest_ && kept_.size() < FirstCount(stage)) return RowRequiredReason::kCut;
  const Shape unit = UnitShape(shape_, kept_[0].bits);
  StageSums sums = NoSums();
  for (size_t i = 1; i < std::min<size_t>(kept_.size(), FirstCount(stage)); ++i) {
    const u32 depth = Depth(ShapedBits(kept_[i].bits, unit), unit.scale);
    sums.first = std::max(sums.first, DecayOf(u32(i), depth - u32(sums.second)));
    sums.second = depth;
  }
  return KeepFirst(MinKTokens(sums.first, sums.second, stage.a, unit.scale));
}

std::optional<RowRequiredReason> ReferenceChain::DropHead(Bound bound, u32 least) {
  const auto end =
      std::ranges::find_if(kept_, [&](const TokenBits& token) { return !IsWithin(DistanceOf(token), bound); });
  if (end == kept_.end() && rest_ && IsWithin(DistanceAt(rest_->bits), bound)) return RowRequiredReason::kCut;
  if (end - 1 == kept_.begin()) return {};
  if (size_t(kept_.end() - (end - 1)) < least) return rest_ ? Undecided(RowRequiredReason::kCut) : std::nullopt;
  if (rest_) rest_->ForgetSums();
  kept_.erase(kept_.begin(), end - 1);
  return {};
}

u64 ReferenceChain::NextState(u32 token) const {
  if (!kernels::KeepsSamplerState(request_.parameters->chain)) return 0;
  const auto chosen = std::ranges::find(kept_, token, &TokenBits::token);
  if (chosen == kept_.end()) return request_.sampler_state;
  u64 sum = 0;
  for (const TokenBits& kept : kept_) sum += WeightOf(kept);
  return StateAfter(stages_.back(), shape_, DistanceOf(*chosen), sum, request_.sampler_state);
}

}  // namespace sortition::law

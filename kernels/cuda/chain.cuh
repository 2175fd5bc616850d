// A chain's stages over a row (kernels/law/functions/stage.inc).
#pragma once

#include "kernels/cuda/place.cuh"

namespace sortition::kernels::cuda {

__device__ inline StageWords ToStageWords(const Stage& stage) {
  return {u32(stage.kind), stage.operands[0], stage.operands[1], stage.operands[2], stage.operands[3]};
}

// Returns a chain's last stage. An empty chain ends like one whose stages carry no state.
__device__ inline StageWords LastStage(const ChainedInput& ask) {
  return ask.stage_count != 0 ? ToStageWords(ask.stages[ask.stage_count - 1]) : StageWords{};
}

__device__ __noinline__ void KeepMass(Chain& chain, const StageWords& stage) {
  if (chain.listed != 0) return KeepOf(chain, TopPOfList(chain.listed, stage.a, chain.shape));
  const u64 sum = SumKept(chain, SumsOf(stage.kind)).first;
  KeepOf(chain, TopPOfRow(chain.row, chain.view, sum, stage.a, chain.last, chain.shape));
}

__device__ __noinline__ void KeepNearest(Chain& chain, const StageWords& stage) {
  const StageSums sums = SumKept(chain, SumsOf(stage.kind));
  const u32 mean = MeanDistance(sums.first, sums.second);
  // Tokens nearest to the mean have the largest keys, so they come first.
  const auto visit_all = [&](u32, auto visit) {
    VisitKept(chain, [&](u64 rank) {
      const u32 t = DistanceOf(KeyOfRank(rank), chain.shape);
      const u64 weight = Weight(t);
      if (weight != 0) visit(Make64(0, ~TypicalGap(t, mean)), weight);
    });
  };
  u64 cut = FindCut(kKeyDigits, ThresholdOf(stage, sums), visit_all);
  if (LeastCount(stage) > 1) {
    const auto visit_live = [&](u32, auto visit) {
      VisitKept(chain, [&](u64 rank) {
        const u32 t = DistanceOf(KeyOfRank(rank), chain.shape);
        if (t != kDead) visit(Make64(0, ~TypicalGap(t, mean)), 1);
      });
    };
    u32 live = 0;
    VisitKept(chain, [&](u64 rank) { live += DistanceOf(KeyOfRank(rank), chain.shape) != kDead; });
    live = CountOfAll(live);
    cut = min(cut, FindCut(kKeyDigits, MakeThreshold(min(live, LeastCount(stage))), visit_live));
  }
  const Window window = TypicalWindow(mean, ~KeyOfRank(cut));
  u32 ceiling = 0;
  if (window.has_head) ceiling = FirstKeyWithin(kCutWithin, window.head, chain.max_key, chain.shape);
  KeepWithin(chain, window.bound);
  if (ceiling != 0) DropFrom(chain, RankOf(ceiling, kNone));
}

__device__ __noinline__ void KeepDepth(Chain& chain, const StageWords& stage) {
  const Shape unit = UnitShape(chain.shape, KeyBits(chain.max_key));
  StageSums sums = NoSums();
  VisitKept(chain, [&](u64 rank) { sums = WithLevel(sums, BitsOf(KeyOfRank(rank), unit), unit.scale); });
  sums.count = CountOfAll(sums.count);
  sums.first = SumOfAll(sums.first);
  sums.second = SumOfAll(sums.second);
  KeepFrom(chain, FirstKeyWithin(kCutDepth, BoundOf(stage, sums, chain.state), chain.max_key, unit));
}

__device__ __noinline__ void KeepTerms(Chain& chain, const StageWords& stage) {
  static_assert(kTopHTokens <= kThreads);
  KeepFirst(chain, FirstCount(stage));
  const u32 log_sum = SumOctaves(SumKept(chain, SumsOf(stage.kind)).first);
  Shared& shared = OnChip();
  const bool is_listed = Thread() < chain.listed;
  const u64 term = is_listed ? EntropyTerm(DistanceOf(KeyOfRank(shared.list[Thread()]), chain.shape), log_sum) : 0;
  StageSums terms = NoSums();
  terms.second = SumOfAll(term);
  const Threshold threshold = ThresholdOf(stage, terms);
  const u64 sum = SumUpToThis(term);
  const u32 count = CountOfAll(is_listed && !Reaches(sum, threshold) ? 1 : 0);
  KeepFirst(chain, max(1u, count));
}

// The tokens within the bound are the first ones. Drops all of them but the last.
__device__ __noinline__ void DropHead(Chain& chain, const StageWords& stage) {
  const StageSums sums = SumKept(chain, SumsOf(stage.kind));
  if (!HasHead(stage, sums)) return;
  const u32 floor = FirstKeyWithin(kCutWithin, BoundOf(stage, sums, chain.state), chain.max_key, chain.shape);
  u64 last = ~u64{0};
  VisitKept(chain, [&](u64 rank) {
    if (KeyOfRank(rank) >= floor) last = min(last, rank);
  });
  last = MinOfAll(last);
  if (LeastCount(stage) > 1) {
    u32 left = 0;
    VisitKept(chain, [&](u64 rank) { left += rank <= last; });
    if (CountOfAll(left) < LeastCount(stage)) return;
  }
  DropFrom(chain, last + 1);
}

__device__ __noinline__ void KeepByFallOff(Chain& chain, const StageWords& stage) {
  const Row& row = chain.row;
  Shared& shared = OnChip();
  const u32 number = FirstCount(stage);
  const u32 count = chain.listed != 0 ? min(chain.listed, number) : SelectFirst(row, chain.view, number, chain.last);
  StageSums sums = NoSums();
  for (u32 i = Thread(); i + 1 < count; i += kThreads) {
    const u32 next = DistanceOf(KeyOfRank(shared.list[i + 1]), chain.shape);
    if (next == kDead) break;
    sums = WithStep(sums, i, DistanceOf(KeyOfRank(shared.list[i]), chain.shape), next);
  }
  sums.first = SumOfAll(sums.first);
  sums.second = SumOfAll(sums.second);
  KeepFirst(chain, MirostatCount(sums, chain.state, shared.input.vocabulary));
}

__device__ __noinline__ void KeepBeforeCliff(Chain& chain, const StageWords& stage) {
  const Row& row = chain.row;
  Shared& shared = OnChip();
  const u32 number = FirstCount(stage);
  const u32 count = chain.listed != 0 ? min(chain.listed, number) : SelectFirst(row, chain.view, number, chain.last);
  const Shape unit = UnitShape(chain.shape, KeyBits(chain.max_key));
  const auto depth_at = [&](u32 i) { return Depth(BitsOf(KeyOfRank(shared.list[i]), unit), unit.scale); };
  u64 decay = 0;
  for (u32 i = Thread() + 1; i < count; i += kThreads) decay = max(decay, DecayOf(i, depth_at(i) - depth_at(i - 1)));
  decay = ~MinOfAll(~decay);
  KeepFirst(chain, MinKTokens(decay, depth_at(count - 1), stage.a, unit.scale));
}

// Without LeastOfFirst.
__device__ __noinline__ void CutStage(Chain& chain, const StageWords& stage) {
  switch (CutOf(stage.kind)) {
    case kCutReshape:
      chain.shape =
          Reshaped(stage, chain.shape, KeyBits(chain.max_key), SumKept(chain, SumsOf(stage.kind)), chain.state);
      return;
    case kCutWithin:
      return KeepWithin(chain, BoundOf(stage, SumKept(chain, SumsOf(stage.kind)), chain.state));
    case kCutDepth:
      return KeepDepth(chain, stage);
    case kCutFirst:
      return KeepFirst(chain, FirstCount(stage));
    case kCutMass:
      return KeepMass(chain, stage);
    case kCutNearest:
      return KeepNearest(chain, stage);
    case kCutTerms:
      return KeepTerms(chain, stage);
    case kCutHead:
      return DropHead(chain, stage);
    case kCutFallOff:
      return KeepByFallOff(chain, stage);
    case kCutCliff:
      return KeepBeforeCliff(chain, stage);
  }
}

__device__ __noinline__ void ApplyStage(Chain& chain, const StageWords& stage) {
  static_assert(kMostListed > kMostKeptAtLeast);
  if (!ActsInDraw(stage, KeyOfDraw(OnChip().input))) return;
  const u32 least = LeastOfFirst(stage);
  const u32 listed = chain.listed;
  const u64 last = chain.last;
  CutStage(chain, stage);
  // If no list was made, the cut left more than kMostListed tokens. From a list it drops only the end.
  if (least <= 1 || chain.listed == 0 || chain.listed >= least) return;
  chain.listed = listed;
  chain.last = last;
  KeepFirst(chain, least);
}

__device__ inline void RunStages(Chain& chain) {
  if (chain.row.Has(kFlagGreedy)) return KeepFirst(chain, 1);
  const ChainedInput& ask = *OnChip().input.chained;
  for (u32 i = 0; i < ask.stage_count; ++i) ApplyStage(chain, ToStageWords(ask.stages[i]));
}

// Returns RowOutput::sampler_state after the token. `sum` is the sum of the kept tokens' weights.
__device__ __noinline__ u64 NextState(const Chain& chain, u32 token, u64 sum) {
  const StageWords last = LastStage(*OnChip().input.chained);
  if (!CarriesState(last.kind)) return 0;
  const u32 key = KeyIn(chain.row, chain.view, token);
  if (key == 0 || !IsKept(chain, RankOf(key, token))) return chain.state;
  return StateAfter(last, chain.shape, Distance(BitsOf(key, chain.shape), chain.shape.scale), sum, chain.state);
}

// Returns the temperature that still has to divide the processed distribution's logits.
__device__ inline double TemperatureShown(const Chain& chain) {
  const ChainedInput& ask = *OnChip().input.chained;
  ShownTemperature shown = ShownAtFirst();
  for (u32 i = 0; i < ask.stage_count; ++i) shown = ShownAfter(ToStageWords(ask.stages[i]), shown, chain.shape.dynamic);
  return shown.units != 0 ? __dmul_rn(__ll2double_rn(shown.units), 0x1p-24) : NumberOf(shown.bits);
}

}  // namespace sortition::kernels::cuda

// A chain's stages. Most end in a bound on the distance, found from a few sums over what is kept.
#pragma once

#include "kernels/cuda/places.cuh"

namespace sortition::kernels::cuda {

__device__ inline u64 SumOfKept(const Chain& chain) { return SumKept(chain, With::kNothing).weights; }

__device__ inline void SetTemperature(Chain& chain, const Temperature& temperature) {
  chain.shape.temperature = temperature;
  Rescale(chain);
}

__device__ __noinline__ void KeepTopP(Chain& chain, u32 p) {
  const Row& row = chain.row;
  KeepOf(chain, chain.listed != 0 ? TopPOfList(chain.listed, p, chain.shape)
                                  : TopPOfRow(row, chain.view, SumOfKept(chain), p, chain.last, chain.shape));
}

__device__ __noinline__ void KeepTypical(Chain& chain, u32 p) {
  const Sums sums = SumKept(chain, With::kMoment);
  const u32 mean = MeanDistance(sums.weights, sums.others);
  // The nearest to the mean come first: their keys are the largest.
  const auto visit_all = [&](u32, auto visit) {
    VisitKept(chain, [&](u64 rank) {
      const u32 t = DistanceOf(KeyOfRank(rank), chain.shape);
      const u64 weight = Weight(t);
      if (weight != 0) visit(Make64(0, ~(t > mean ? t - mean : mean - t)), weight);
    });
  };
  const u64 cut = FindCut(kKeyDigits, TopPThreshold(sums.weights, p), visit_all);
  const u32 gap = ~KeyOfRank(cut);
  const u32 nearest = mean > gap ? mean - gap : 0;
  const u32 ceiling = nearest == 0 ? 0 : FirstKeyWithin(nearest - 1, chain.max_key, chain.shape);
  KeepWithin(chain, gap < kFarthest - mean ? mean + gap : kFarthest);
  if (ceiling != 0) DropFrom(chain, RankOf(ceiling, kNone));
}

__device__ __noinline__ void KeepNSigma(Chain& chain, u32 log_n) {
  Shape unit = chain.shape;
  unit.temperature = UnitTemperature();
  unit.scale = ScaleFrom(KeyBits(chain.max_key), unit);
  u32 count = 0;
  u64 levels = 0;
  u64 squares = 0;
  VisitKept(chain, [&](u64 rank) {
    const i64 level = i32(Level(BitsOf(KeyOfRank(rank), unit), unit.scale));
    ++count;
    levels += u64(level);
    squares += u64(level * level);
  });
  count = CountOfAll(count);
  levels = SumOfAll(levels);
  squares = SumOfAll(squares);
  const u32 bound = SigmaBound(count, levels, squares, log_n);
  KeepFrom(chain, FirstKeyWhere(kLowestKey, chain.max_key, [&](u32 key) {
             return Depth(BitsOf(Key(Flush(KeyBits(key))), unit), unit.scale) <= bound;
           }));
}

__device__ __noinline__ void KeepTopH(Chain& chain, u32 h) {
  static_assert(kTopHTokens <= kThreads);
  KeepFirst(chain, kTopHTokens);
  const u32 log_sum = SumOctaves(SumOfKept(chain));
  Shared& shared = OnChip();
  u64 term = 0;
  if (Thread() < chain.listed) term = EntropyTerm(DistanceOf(KeyOfRank(shared.list[Thread()]), chain.shape), log_sum);
  const u64 limit = TopHLimit(SumOfAll(term), h);
  const u64 sum = SumUpToThis(term);
  const u32 count = CountOfAll(Thread() < chain.listed && sum <= limit ? 1 : 0);
  KeepFirst(chain, max(1u, count));
}

__device__ __noinline__ void DropTop(Chain& chain, u32 chance, u32 threshold) {
  if (!XtcActs(KeyOfDraw(OnChip().input), chance)) return;
  const u32 bound = EpsilonBound(SumOfKept(chain), threshold);
  // The last token that reaches the threshold; those are the first ones.
  const u32 floor = FirstKeyWithin(bound, chain.max_key, chain.shape);
  u64 last = ~u64{0};
  VisitKept(chain, [&](u64 rank) {
    if (KeyOfRank(rank) >= floor) last = min(last, rank);
  });
  DropFrom(chain, MinOfAll(last) + 1);
}

__device__ __noinline__ void KeepMirostat1(Chain& chain, u32 m) {
  const Row& row = chain.row;
  Shared& shared = OnChip();
  const u32 count = chain.listed != 0 ? min(chain.listed, m) : SelectFirst(row, chain.view, m, chain.last);
  u64 terms = 0;
  u64 squares = 0;
  u32 steps = 0;
  for (u32 i = Thread(); i + 1 < count; i += kThreads) {
    const u32 next = DistanceOf(KeyOfRank(shared.list[i + 1]), chain.shape);
    if (next == kDead) break;
    terms += RankTerm(i, next - DistanceOf(KeyOfRank(shared.list[i]), chain.shape));
    squares += RankSquare(i);
    ++steps;
  }
  terms = SumOfAll(terms);
  squares = SumOfAll(squares);
  if (CountOfAll(steps) == 0) return KeepFirst(chain, 1);
  KeepFirst(chain, MirostatTokens(FallOff(terms, squares), chain.state, shared.input.vocabulary));
}

__device__ __noinline__ void ApplyStage(Chain& chain, const Stage& stage) {
  const u32 a = stage.operands[0];
  const u32 b = stage.operands[1];
  const u32 c = stage.operands[2];
  switch (stage.kind) {
    case StageKind::kTemperature:
      return SetTemperature(chain, {a, i32(b), c});
    case StageKind::kMinP:
      return KeepWithin(chain, a);
    case StageKind::kTopK:
      return KeepFirst(chain, a);
    case StageKind::kTopP:
      return KeepTopP(chain, a);
    case StageKind::kTypicalP:
      return KeepTypical(chain, a);
    case StageKind::kTopNSigma:
      return KeepNSigma(chain, a);
    case StageKind::kEpsilonCutoff:
      return KeepWithin(chain, EpsilonBound(SumOfKept(chain), a));
    case StageKind::kEtaCutoff: {
      const Sums sums = SumKept(chain, With::kMoment);
      return KeepWithin(chain, EtaBound(sums.weights, sums.others, a));
    }
    case StageKind::kTopA:
      return KeepWithin(chain, TopABound(SumOfKept(chain), a));
    case StageKind::kTopH:
      return KeepTopH(chain, a);
    case StageKind::kPLess: {
      const Sums sums = SumKept(chain, With::kSquare);
      return KeepWithin(chain, PLessBound(sums.weights, sums.others));
    }
    case StageKind::kXtc:
      return DropTop(chain, a, b);
    case StageKind::kDynamicTemperature: {
      const Sums sums = SumKept(chain, With::kMoment);
      chain.temperature = DynamicTemperature(sums.count, sums.weights, sums.others, a, b, c);
      return SetTemperature(chain, TemperatureOf(chain.temperature));
    }
    case StageKind::kQuadraticSmoothing:
      chain.shape = SmoothedShape(chain.shape, KeyBits(chain.max_key), a, b);
      return;
    case StageKind::kMirostat1:
      return KeepMirostat1(chain, c);
    case StageKind::kMirostat2:
      return KeepWithin(chain, MirostatBound(SumOfKept(chain), chain.state));
    case StageKind::kAdaptiveP:
      chain.shape.share = ShareOf(SumOfKept(chain));
      chain.shape.target = AdaptedTarget(a, Low(chain.state));
      chain.shape.is_adapted = true;
      return;
  }
}

__device__ inline void RunStages(Chain& chain) {
  if (chain.row.Has(kFlagGreedy)) return KeepFirst(chain, 1);
  const ChainedInput& ask = *OnChip().input.chained;
  for (u32 i = 0; i < ask.stage_count; ++i) ApplyStage(chain, ask.stages[i]);
}

// Whether the chain ends in a stage that goes on from step to step.
__device__ inline bool KeepsState(const ChainedInput& ask) {
  return ask.stage_count != 0 && ask.stages[ask.stage_count - 1].kind >= StageKind::kMirostat1;
}

// RowOutput::sampler_state after the token; `sum` of the kept tokens' weights.
__device__ __noinline__ u64 NextState(const Chain& chain, u32 token, u64 sum) {
  const ChainedInput& ask = *OnChip().input.chained;
  if (!KeepsState(ask)) return 0;
  const u32 key = KeyIn(chain.row, chain.view, token);
  if (key == 0 || !IsKept(chain, RankOf(key, token))) return chain.state;
  const Stage& stage = ask.stages[ask.stage_count - 1];
  const u32 t = Distance(BitsOf(key, chain.shape), chain.shape.scale);
  if (stage.kind != StageKind::kAdaptiveP) {
    return NextMu(chain.state, sum, t, stage.operands[0], stage.operands[1]);
  }
  return NextAverage(Low(chain.state), ProbabilityOf(Weight(t), chain.shape.share), stage.operands[1]);
}

// The temperature that still divides the processed distribution's logits.
__device__ inline double LastTemperature(const Chain& chain) {
  const ChainedInput& ask = *OnChip().input.chained;
  double temperature = 1;
  for (u32 i = 0; i < ask.stage_count; ++i) {
    const Stage& stage = ask.stages[i];
    if (stage.kind == StageKind::kTemperature) temperature = NumberOf(stage.operands[3]);
    if (stage.kind == StageKind::kDynamicTemperature)
      temperature = __dmul_rn(__ll2double_rn(chain.temperature), 0x1p-24);
    if (stage.kind == StageKind::kQuadraticSmoothing || stage.kind == StageKind::kAdaptiveP) temperature = 1;
  }
  return temperature;
}

}  // namespace sortition::kernels::cuda

// Chains (kernels/law/CHAIN.md), stage by stage: decides what each keeps, or makes of the logits. A thread decides for
// a row; x counts rows.
//
// A stage is done in steps. Each may ask for sums over the kept tokens (sum.comp, falloff.comp), and then for a search
// among them (search.comp): this runs after either. Stages that need neither are done on the way.
#version 450
#extension GL_GOOGLE_include_directive : require
#include "kernels/vulkan/scan.glsl"
#include "kernels/vulkan/searched.glsl"
#include "kernels/vulkan/stages.inc"
#include "kernels/vulkan/summed.glsl"

// Steps. The first two keep the first `g_chain.number` tokens: the k-th largest of the groups' largest keys bounds the
// k-th key from below, so about k groups are looked at.
const u32 kFirstGroups = 0u;
const u32 kFirstTokens = 1u;
const u32 kOwn = 2u;      // the stage's own sums, and search
const u32 kAfterOwn = 3u;  // the second of those
// Stages that are none: the search for the first token before the chain, and the sum after one that ends in mirostat.
const u32 kStageBegin = 32u;
const u32 kStageEnd = 33u;

ChainOutput g_chain;
u32 g_kind;
uvec3 g_operands;

u64 First() { return Make64(g_chain.first_low, g_chain.first_high); }
u64 Second() { return Make64(g_chain.second_low, g_chain.second_high); }
u64 SamplerState() { return Make64(g_row.sampler_state_low, g_row.sampler_state_high); }

void OpenStage() {
  g_kind = kStageEnd;
  g_operands = uvec3(0u);
  if (g_chain.stage == kNone) g_kind = kStageBegin;
  if (g_chain.stage >= g_row.stage_count) return;
  u32 at = g_row.stages + g_chain.stage * kStageWords;
  g_kind = extras[at];
  g_operands = uvec3(extras[at + 1u], extras[at + 2u], extras[at + 3u]);
}

bool IsWithin(u32 key, u32 bound, Scale scale, bool by_depth) {
  u32 bits = ShapedBits(Flush(KeyBits(key)), g_shape);
  return (by_depth ? Depth(bits, scale) : Distance(bits, scale)) <= bound;
}

// The smallest key within `bound`, a distance that is not dead, or a depth. Some keys are no canonical logit's, and it
// may be such.
u32 FirstWithin(u32 bound) {
  bool by_depth = g_kind == kStageTopNSigma;
  Scale scale = g_shape.scale;
  if (by_depth) scale = ScaleOf(ShapedBits(KeyBits(g_first.key), g_shape), UnitTemperature());
  u32 first = Key(0xc77fdfffu);  // of the smallest live logit
  u32 last = g_first.key;
  while (first < last) {
    u32 middle = first + (last - first) / 2u;
    if (IsWithin(middle, bound, scale, by_depth)) {
      last = middle;
    } else {
      first = middle + 1u;
    }
  }
  return first;
}

void KeepFrom(u32 key) {
  if (key <= g_last.key) return;
  g_last.key = key;
  g_last.id = kNone;
}

// Drops a token that the order has after the first one, and all after it.
void KeepBefore(Token beyond) {
  g_last = beyond;
  if (beyond.key == g_first.key && beyond.id == g_first.id) return;
  if (beyond.id == 0u) ++g_last.key;
  --g_last.id;
}

// What is known of the kept tokens can be set aside, and taken back.
void SetLastAside() {
  g_chain.before_key = g_last.key;
  g_chain.before_token = g_last.id;
}
void TakeLastBack() {
  g_last.key = g_chain.before_key;
  g_last.id = g_chain.before_token;
}

void Search(u32 what, u64 target) {
  g_chain.search = what;
  g_chain.target_low = Low(target);
  g_chain.target_high = High(target);
}

// Stages that set a bound on distances, or depths: the largest that is kept; of XTC, that makes a token likely.
u32 BoundOf() {
  switch (g_kind) {
    case kStageTopNSigma:
      return SigmaBound(g_chain.count, First(), Second(), g_operands.x);
    case kStageEpsilonCutoff:
      return EpsilonBound(First(), g_operands.x);
    case kStageXtc:
      return EpsilonBound(First(), g_operands.y);
    case kStageEtaCutoff:
      return EtaBound(First(), Second(), g_operands.x);
    case kStageTopA:
      return TopABound(First(), g_operands.x);
    case kStagePLess:
      return PLessBound(First(), Second());
    case kStageMirostat2:
      return MirostatBound(First(), SamplerState());
  }
  return g_operands.x;  // min-p
}

void Reshape() {
  if (g_kind == kStageTemperature) {
    g_shape.temperature.multiplier = g_operands.x;
    g_shape.temperature.exponent = i32(g_operands.y);
    g_shape.temperature.window = g_operands.z;
  } else if (g_kind == kStageDynamicTemperature) {
    g_chain.temperature =
        DynamicTemperature(g_chain.count, First(), Second(), g_operands.x, g_operands.y, g_operands.z);
    g_shape.temperature = TemperatureOf(g_chain.temperature);
  } else if (g_kind == kStageQuadraticSmoothing) {
    g_shape = SmoothedShape(g_shape, KeyBits(g_first.key), g_operands.x, g_operands.y);
  } else {
    g_shape.share = ShareOf(First());
    g_shape.target = AdaptedTarget(g_operands.x, g_row.sampler_state_low);
    g_shape.is_adapted = true;
  }
}

// What the step sums.
u32 Summed() {
  if (g_chain.step == kFirstGroups) return kGroups;
  if (g_chain.step == kFirstTokens) return kCounts;
  switch (g_kind) {
    case kStageXtc:
      return g_chain.step == kOwn ? kWeights : kCounts;
    case kStageTopH:
      return g_chain.step == kOwn ? kWeights : kEntropyTerms;
    case kStageTypicalP:
      return g_chain.step == kOwn ? kMoments : kNothing;
    case kStageEtaCutoff:
    case kStageDynamicTemperature:
      return kMoments;
    case kStagePLess:
      return kSquares;
    case kStageTopNSigma:
      return kLevels;
    case kStageMirostat1:
      return kFallOff;
  }
  return kWeights;
}

// After the sums: what is to be searched, or at once what is kept.
void DecideSearch() {
  g_chain.search = kNone;
  u64 number = Make64(g_chain.number, 0u);
  if (g_kind == kStageBegin) {
    g_first.key = kNone;
    g_first.id = 0u;
    g_last.key = outputs[row].max_key;
    g_last.id = kNone;
    g_shape = PlainShape(KeyBits(g_last.key));
    g_chain.temperature = 0u;
    Search(kTokens, Make64(1u, 0u));
  } else if (g_chain.step == kFirstGroups) {
    if (g_chain.count >= g_chain.number) Search(kGroupMaxima, number);
  } else if (g_chain.step == kFirstTokens) {
    if (g_chain.count > g_chain.number) Search(kTokens, number);
  } else if (g_kind == kStageTopP) {
    Search(kTokenWeights, TopPThreshold(First(), g_operands.x));
  } else if (g_kind == kStageTypicalP) {
    // The second step looks for the first token from where the first one has put the end of those that go.
    if (g_chain.step == kOwn) g_chain.mean = MeanDistance(First(), Second());
    bool is_own = g_chain.step == kOwn;
    u64 target = Make64(1u, 0u);
    if (is_own) target = TopPThreshold(First(), g_operands.x);
    Search(is_own ? kByNearness : kTokens, target);
  } else if (g_kind == kStageTopH) {
    if (g_chain.step == kOwn) {
      g_chain.log_sum = SumOctaves(First());
    } else {
      u64 limit = TopHLimit(Second(), g_operands.x);
      if (Less64(limit, Second())) Search(kTokenTerms, Add64(limit, Make64(1u, 0u)));
    }
  } else if (g_kind == kStageXtc && g_chain.step == kAfterOwn) {
    // The last of the likely tokens.
    Search(kTokens, Make64(g_chain.count, 0u));
  } else if (g_kind == kStageMirostat1) {
    g_chain.number = 1u;
    if (Low(Second()) != 0u || High(Second()) != 0u) {
      g_chain.number = MirostatTokens(FallOff(First(), Second()), SamplerState(), g_row.vocabulary);
    }
    TakeLastBack();
  } else if (g_kind == kStageEnd) {
    g_chain.sum_low = g_chain.first_low;
    g_chain.sum_high = g_chain.first_high;
  } else if (g_kind == kStageDynamicTemperature || g_kind == kStageAdaptiveP) {
    Reshape();
  } else {
    if (g_kind == kStageXtc) SetLastAside();
    KeepFrom(FirstWithin(BoundOf()));
  }
}

// After the search: what is kept. True if the stage is done.
bool DecideKept() {
  bool is_found = g_chain.search != kNone;
  Token cut;
  cut.key = g_chain.cut_key;
  cut.id = g_chain.cut_token;
  if (g_kind == kStageBegin) {
    g_first = cut;
    g_last.key = 1u;
    g_last.id = kNone;
    return true;
  }
  if (g_chain.step == kFirstGroups) {
    if (is_found) KeepFrom(cut.key);
    g_chain.step = kFirstTokens;
    return false;
  }
  if (g_chain.step == kFirstTokens) {
    if (is_found) g_last = cut;
    g_chain.step = kOwn;
    return g_kind == kStageTopK || (g_kind == kStageMirostat1 && g_chain.is_estimated != 0u);
  }
  if (g_kind == kStageTopP) g_last = cut;
  if (g_kind == kStageTopH && is_found) KeepBefore(cut);
  if (g_kind == kStageMirostat1) {
    g_chain.is_estimated = 1u;
    g_chain.step = kFirstGroups;
    return false;
  }
  bool goes_on = g_chain.step == kOwn && (g_kind == kStageTopH || g_kind == kStageXtc);
  if (g_kind == kStageTypicalP && g_chain.step == kOwn) {
    // Tokens that are nearer than the mean by more than the gap go, and those that are further by more than it.
    u32 gap = ~cut.key;
    u32 bound = gap < kFarthest - g_chain.mean ? g_chain.mean + gap : kFarthest;
    goes_on = gap < g_chain.mean;
    for (u32 end = 0u; end < 2u; ++end) {
      u32 key = FirstWithin(bound);
      if (end == 0u) KeepFrom(key);
      if (!goes_on) break;
      bound = g_chain.mean - gap - 1u;
      if (end == 1u) {
        g_first.key = key - 1u;
        g_first.id = 0u;
      }
    }
  } else if (g_chain.step == kAfterOwn && g_kind != kStageTopH) {
    g_first = cut;
    if (g_kind == kStageXtc) TakeLastBack();
  }
  g_chain.step = kAfterOwn;
  return !goes_on;
}

// Goes on to the next stage that sums something, and does those before it.
void OpenNextStage() {
  for (u32 most = 0u; most < 32u; ++most) {
    bool keeps_mu = g_kind == kStageMirostat1 || g_kind == kStageMirostat2;
    ++g_chain.stage;
    OpenStage();
    g_shape.scale = ScaleFrom(KeyBits(g_first.key), g_shape);
    if (g_kind == kStageEnd && !keeps_mu) {
      g_chain.stage = kChainEnd;
      return;
    }
    if (g_kind == kStageTemperature || g_kind == kStageQuadraticSmoothing) {
      Reshape();
    } else if (g_kind == kStageMinP) {
      KeepFrom(FirstWithin(g_operands.x));
    } else if (g_kind != kStageXtc || XtcActs(KeyOfRow(), g_operands.x)) {
      break;
    }
  }
  g_chain.step = kOwn;
  g_chain.is_estimated = 0u;
  g_chain.number = g_operands.x;
  if (g_kind == kStageTopH) g_chain.number = kTopHTokens;
  if (g_kind == kStageMirostat1) g_chain.number = g_operands.z;
  if (g_kind == kStageTopK || g_kind == kStageTopH || g_kind == kStageMirostat1) g_chain.step = kFirstGroups;
  if (g_kind == kStageMirostat1) SetLastAside();
}

void Leave() {
  g_chain.first_key = g_first.key;
  g_chain.first_token = g_first.id;
  g_chain.multiplier = g_shape.temperature.multiplier;
  g_chain.exponent = g_shape.temperature.exponent;
  g_chain.window = g_shape.temperature.window;
  g_chain.is_curved = g_shape.is_curved ? 1u : 0u;
  g_chain.curve_max = g_shape.curve.max;
  g_chain.curve_inverse = g_shape.curve.inverse;
  g_chain.curve_square = g_shape.curve.square;
  g_chain.curve_cube = g_shape.curve.cube;
  g_chain.is_adapted = g_shape.is_adapted ? 1u : 0u;
  g_chain.share_up = g_shape.share.up;
  g_chain.share_reciprocal = g_shape.share.reciprocal;
  g_chain.target = g_shape.target;
  outputs[row].chain = g_chain;
  outputs[row].last_key = g_last.key;
  outputs[row].last_token = g_last.id;
}

void main() {
  OpenRow(gl_WorkGroupID.x);
  if (!IsMine() || !IsSampled()) return;
  g_chain = outputs[row].chain;
  if (g_chain.stage == kChainEnd) return;
  OpenStage();
  OpenKept();
  if (g_chain.is_searched != 1u) {
    DecideSearch();
    g_chain.is_searched = 1u;
  } else {
    g_chain.is_searched = 0u;
    // The end of a chain is no stage that another follows.
    if (DecideKept()) {
      if (g_kind == kStageEnd) {
        g_chain.stage = kChainEnd;
      } else {
        OpenNextStage();
      }
    }
    if (g_chain.stage != kChainEnd) g_chain.summed = Summed();
  }
  Leave();
}

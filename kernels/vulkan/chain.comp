// Runs chains (kernels/law/CHAIN.md), stage by stage: decides which tokens each stage keeps, or how it reshapes logits.
// A thread decides for a row; x counts rows.
//
// A stage is done in steps. Each may need sums over the kept tokens (sum.comp, falloff.comp), and then a search among
// them (search.comp). This shader runs after the sums and after the search. Stages that need neither are done at once.
#version 450
#extension GL_GOOGLE_include_directive : require
#include "kernels/vulkan/scan.glsl"
#include "kernels/vulkan/chain.glsl"

// Steps. The first two keep the first `g_chain.number` tokens: the k-th largest of the groups' largest keys bounds the
// k-th key from below, so about k groups are looked at.
const u32 kFirstGroups = 0u;
const u32 kFirstTokens = 1u;
const u32 kOwn = 2u;       // the stage's own sums and search
const u32 kAfterOwn = 3u;  // the stage's second sums and search
// Pseudo-stages: the search for the first token before the chain, and the sum that the next state needs.
const u32 kStageBegin = 32u;
const u32 kStageEnd = 33u;

ChainOutput g_chain;
StageWords g_stage;
u32 g_cut;  // CutOf(g_stage.kind); kNone for pseudo-stages

StageSums Sums() {
  StageSums sums;
  sums.count = g_chain.count;
  sums.first = Make64(g_chain.first_low, g_chain.first_high);
  sums.second = Make64(g_chain.second_low, g_chain.second_high);
  return sums;
}
u64 SamplerState() { return Make64(g_row.sampler_state_low, g_row.sampler_state_high); }

void OpenStage() {
  g_stage.kind = kStageEnd;
  g_stage.a = 0u;
  g_stage.b = 0u;
  g_stage.c = 0u;
  g_stage.d = 0u;
  g_cut = kNone;
  if (g_chain.stage == kNone) g_stage.kind = kStageBegin;
  if (g_chain.stage >= g_row.stage_count) return;
  u32 at = g_row.stages + g_chain.stage * kStageWords;
  g_stage.kind = extras[at];
  g_stage.a = extras[at + 1u];
  g_stage.b = extras[at + 2u];
  g_stage.c = extras[at + 3u];
  g_cut = CutOf(g_stage.kind);
}

// True if the cut keeps the first tokens, up to a number that it finds in the first FirstCount tokens.
bool LooksAtFirst() { return g_cut == kCutFallOff || g_cut == kCutCliff; }

// Returns the smallest key that the bound of a cut keeps.
u32 FirstWithin(Bound bound) {
  Shape shape = g_shape;
  if (g_cut == kCutDepth) shape = UnitShape(g_shape, KeyBits(g_first.key));
  return FirstKeyKept(g_cut, bound, g_first.key, shape);
}

void KeepFrom(u32 key) {
  if (key <= g_last.key) return;
  g_last.key = key;
  g_last.id = kNone;
}

// Drops a token after the first one, and all tokens after it.
void KeepBefore(Token beyond) {
  g_last = beyond;
  if (beyond.key == g_first.key && beyond.id == g_first.id) return;
  if (beyond.id == 0u) ++g_last.key;
  --g_last.id;
}

// Saves the end of the kept tokens, so that it can be restored.
void SetLastAside() {
  g_chain.before_key = g_last.key;
  g_chain.before_token = g_last.id;
}
void TakeLastBack() {
  g_last.key = g_chain.before_key;
  g_last.id = g_chain.before_token;
}

void Search(u32 what, Threshold target) {
  g_chain.search = what;
  g_chain.target_low = Low(LeastSum(target));
  g_chain.target_high = High(LeastSum(target));
}
void SearchToken(u32 what, u32 number) { Search(what, MakeThreshold(Make64(number, 0u))); }

void KeepWithin() { KeepFrom(FirstWithin(BoundOf(g_stage, Sums(), SamplerState()))); }

void Reshape() { g_shape = Reshaped(g_stage, g_shape, KeyBits(g_first.key), Sums(), SamplerState()); }

// Returns the sums that the step takes.
u32 Summed() {
  if (g_chain.step == kFirstGroups) return kSumGroups;
  if (g_chain.step == kFirstTokens) return kSumCounts;
  if (g_stage.kind >= kStageBegin) return kSumWeights;
  if (g_chain.step == kOwn) return SumsOf(g_stage.kind);
  if (g_cut == kCutHead) return kSumCounts;
  return g_cut == kCutTerms ? kSumTerms : kSumNothing;
}

// Runs after the sums of a step that finds a stage's cut.
void DecideCut() {
  bool is_own = g_chain.step == kOwn;
  if (g_cut == kCutReshape) {
    Reshape();
  } else if (g_cut == kCutMass) {
    Search(kTokenWeights, ThresholdOf(g_stage, Sums()));
  } else if (g_cut == kCutNearest && is_own) {
    g_chain.mean = MeanDistance(Sums().first, Sums().second);
    Search(kByNearness, ThresholdOf(g_stage, Sums()));
  } else if (g_cut == kCutNearest) {
    // Finds the first token at or after the cut that the first search found.
    SearchToken(kTokens, 1u);
  } else if (g_cut == kCutTerms && is_own) {
    g_chain.log_sum = SumOctaves(Sums().first);
  } else if (g_cut == kCutTerms) {
    Threshold threshold = ThresholdOf(g_stage, Sums());
    if (Reaches(Sums().second, threshold)) Search(kTokenTerms, threshold);
  } else if (g_cut == kCutFallOff) {
    g_chain.number = MirostatCount(Sums(), SamplerState(), g_row.vocabulary);
    TakeLastBack();
  } else if (g_cut == kCutCliff) {
    Scale unit = UnitShape(g_shape, KeyBits(g_first.key)).scale;
    g_chain.number = MinKTokens(Sums().first, Sums().second, g_stage.a, unit);
    TakeLastBack();
  } else if (g_cut == kCutHead && !is_own) {
    // Finds the last of the likely tokens.
    SearchToken(kTokens, g_chain.count);
  } else {
    if (g_cut == kCutHead) SetLastAside();
    if (g_cut == kCutHead && !HasHead(g_stage, Sums())) {
      g_last = g_first;  // the head is the first token alone, so nothing is dropped
    } else {
      KeepWithin();
    }
  }
}

// Runs after the sums: decides the search, or at once the kept tokens.
void DecideSearch() {
  g_chain.search = kNone;
  if (g_stage.kind == kStageBegin) {
    g_first.key = kNone;
    g_first.id = 0u;
    g_last.key = outputs[row].max_key;
    g_last.id = kNone;
    g_shape = PlainShape(KeyBits(g_last.key));
    SearchToken(kTokens, 1u);
  } else if (g_chain.step == kFirstGroups) {
    if (g_chain.count >= g_chain.number) SearchToken(kGroupMaxima, g_chain.number);
  } else if (g_chain.step == kFirstTokens) {
    if (g_chain.count > g_chain.number) SearchToken(kTokens, g_chain.number);
  } else if (g_stage.kind == kStageEnd) {
    g_chain.sum_low = g_chain.first_low;
    g_chain.sum_high = g_chain.first_high;
  } else {
    DecideCut();
  }
}

// Runs after the search: decides the kept tokens. True if the stage is done.
bool DecideKept() {
  bool is_found = g_chain.search != kNone;
  Token cut;
  cut.key = g_chain.cut_key;
  cut.id = g_chain.cut_token;
  if (g_stage.kind == kStageBegin) {
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
    return g_cut == kCutFirst || (LooksAtFirst() && g_chain.is_estimated != 0u);
  }
  if (g_cut == kCutMass) g_last = cut;
  if (g_cut == kCutTerms && is_found) KeepBefore(cut);
  if (LooksAtFirst()) {
    g_chain.is_estimated = 1u;
    g_chain.step = kFirstGroups;
    return false;
  }
  bool goes_on = g_chain.step == kOwn && (g_cut == kCutTerms || g_cut == kCutHead);
  if (g_cut == kCutNearest && g_chain.step == kOwn) {
    Window window = TypicalWindow(g_chain.mean, ~cut.key);
    goes_on = window.has_head;
    // One call for both ends: compilers copy the search to each place that calls it.
    Bound bound = window.bound;
    for (u32 end = 0u; end < 2u; ++end) {
      u32 key = FirstWithin(bound);
      if (end == 0u) KeepFrom(key);
      if (!goes_on) break;
      bound = window.head;
      if (end == 1u) {
        g_first.key = key - 1u;
        g_first.id = 0u;
      }
    }
  } else if (g_chain.step == kAfterOwn && g_cut != kCutTerms) {
    g_first = cut;
    if (g_cut == kCutHead) TakeLastBack();
  }
  g_chain.step = kAfterOwn;
  return !goes_on;
}

// Advances to the next stage that sums something, after running those before it.
void OpenNextStage() {
  for (u32 most = 0u; most < 32u; ++most) {
    bool needs_sum = StateNeedsSum(g_stage.kind);
    ++g_chain.stage;
    OpenStage();
    g_shape.scale = ScaleFrom(KeyBits(g_first.key), g_shape);
    if (g_stage.kind == kStageEnd && !needs_sum) {
      g_chain.stage = kChainEnd;
      return;
    }
    if (g_stage.kind == kStageEnd || SumsOf(g_stage.kind) != kSumNothing || g_cut == kCutFirst) {
      if (ActsInDraw(g_stage, KeyOfRow())) break;
    } else if (g_cut == kCutReshape) {
      Reshape();
    } else {
      KeepWithin();
    }
  }
  g_chain.step = kOwn;
  g_chain.is_estimated = 0u;
  g_chain.number = FirstCount(g_stage);
  if (g_chain.number != 0u) g_chain.step = kFirstGroups;
  if (LooksAtFirst()) SetLastAside();
}

void Leave() {
  g_chain.first_key = g_first.key;
  g_chain.first_token = g_first.id;
  g_chain.multiplier = g_shape.temperature.multiplier;
  g_chain.exponent = g_shape.temperature.exponent;
  g_chain.window = g_shape.temperature.window;
  g_chain.temperature = g_shape.dynamic;
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
    // The chain ends after its last stage.
    if (DecideKept()) {
      if (g_stage.kind == kStageEnd) {
        g_chain.stage = kChainEnd;
      } else {
        OpenNextStage();
      }
    }
    if (g_chain.stage != kChainEnd) g_chain.summed = Summed();
  }
  Leave();
}

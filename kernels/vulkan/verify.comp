// The test of drafted tokens, and the race in their place (kernels/law/SPECULATION.md). A workgroup verifies a row; x
// counts rows.
#version 450
#extension GL_GOOGLE_include_directive : require
#include "kernels/vulkan/scan.glsl"
#include "kernels/vulkan/mass.glsl"
#include "kernels/vulkan/race.glsl"

// Returns the f32 bits of the token's probability in the draft's distribution.
u32 DraftBits(u32 id) {
  if (g_row.draft_form == kDraftCertain) return id == g_row.given ? 0x3f800000u : 0u;
  if (g_row.draft_form == kDraftDense) return ElementBits(g_row.draft, g_row.draft_dtype, id);
  u32 first = 0u;
  u32 end = g_row.draft_count;
  while (first < end) {
    u32 middle = (first + end) / 2u;
    if (extras[g_row.draft + middle] < id) {
      first = middle + 1u;
    } else {
      end = middle;
    }
  }
  bool is_listed = first < g_row.draft_count && extras[g_row.draft + first] == id;
  return is_listed ? extras[g_row.draft + g_row.draft_count + first] : 0u;
}

// True if the drafter's values are probabilities, sum to 1 and give the draft a probability above 0. Lists were checked
// when they arrived. All threads call this.
bool CheckDraft() {
  if (g_row.draft_form != kDraftDense) return true;
  u64 units = Make64(0u, 0u);
  u32 inverse = 0u;  // largest ~id with an element that is no probability
  for (u32 id = thread; id < g_row.vocabulary; id += kThreads) {
    u32 q = DraftBits(id);
    if (IsProbability(q)) {
      units = Add64(units, Make64(ProbabilityUnits(q), 0u));
    } else {
      inverse = max(inverse, ~id);
    }
  }
  inverse = MaxOfAll(inverse);
  units = SumOfAll(units);
  u32 error = kNone;
  u32 token = 0u;
  if (inverse != 0u) {
    error = kDraftNoProbability;
    token = ~inverse;
  } else if (!IsWhole(units)) {
    error = kDraftSum;
  } else if ((DraftBits(g_row.given) & 0x7fffffffu) == 0u) {
    error = kDraftImpossible;
    token = g_row.given;
  }
  if (thread == 0u) {
    outputs[row].draft_error = error;
    outputs[row].draft_error_token = token;
  }
  return error == kNone;
}

u64 g_sum;          // of the kept tokens' weights
bool g_is_residual;  // the race is among the residual weights

u64 DraftWeightOf(u32 id) { return DraftWeight(DraftBits(id), g_sum); }

bool LagOfWeight(u64 weight, out u64 lag) {
  if (Low(weight) == 0u && High(weight) == 0u) return false;
  lag = ResidualLag(weight);
  return true;
}
bool LagOf(Token token, out u64 lag) {
  u64 weight = WeightOf(token.key);
  if (g_is_residual) weight = Residual(weight, DraftWeightOf(token.id));
  return LagOfWeight(weight, lag);
}
bool LeastLagOf(u32 key, out u64 lag) { return LagOfWeight(Weight(LeastDistanceOf(key)), lag); }

bool IsAccepted(Token draft, PhiloxWords words) {
  if (draft.key == 0u || !IsKept(draft)) return false;
  return Accepts(WordOf(words, 1u), WeightOf(draft.key), DraftWeightOf(draft.id));
}

// Draws the token in the draft's place, from the residual weights, or from the target's weights if rounding left no
// residual.
Token Replacement(u32 first_key) {
  Token winner;
  winner.id = kNone;
  g_is_residual = true;
  for (u32 attempt = 0u; attempt < 2u && winner.id == kNone; ++attempt) {
    winner = Race(first_key);
    g_is_residual = false;
  }
  return winner;
}

void main() {
  OpenRow(gl_WorkGroupID.x);
  if (!IsMine() || !Has(kFlagVerify) || !IsSampled() || !CheckDraft()) return;
  if (Has(kFlagGreedy)) {
    // Accepts the draft if it is the first token. Otherwise the first token takes its place.
    if (thread == 0u) outputs[row].accepted = outputs[row].first_token == g_row.given ? 1u : 0u;
    return;
  }
  LookAt(false);
  g_list = Area(KERNEL_LIST(g_groups));
  u32 first_key = OpenKept();
  g_sum = MassOfSampled().sum;
  PhiloxWords words = NoiseWords(0u, kVerifyTag, KeyOfRow());
  g_draw = ResidualKey(words, KeyOfRow());
  Token token;
  token.id = g_row.given;
  token.key = KeyOf(token.id);
  bool is_accepted = IsAccepted(token, words);
  if (!is_accepted) token = Replacement(first_key);
  if (thread != 0u) return;
  outputs[row].token = token.id;
  outputs[row].token_key = token.key;
  outputs[row].accepted = is_accepted ? 1u : 0u;
}

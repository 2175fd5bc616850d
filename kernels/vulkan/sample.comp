// Filters and draw. A workgroup samples a row; x counts rows.
#version 450
#extension GL_GOOGLE_include_directive : require
#include "kernels/vulkan/select.glsl"
#include "kernels/vulkan/mass.glsl"
#include "kernels/vulkan/race.glsl"

bool LagOfDistance(u32 t, out u64 lag) {
  lag = Lag(t);
  return t != kDead;
}
bool LagOf(Token token, out u64 lag) { return LagOfDistance(DistanceOf(token.key), lag); }
bool LeastLagOf(u32 key, out u64 lag) { return LagOfDistance(LeastDistanceOf(key), lag); }

// True if top-p alone decides on the token and nothing else depends on what it keeps. Then the race comes first: its
// winner is the answer if the weights of the tokens before it do not reach the threshold.
bool RacesFirst() {
  u32 others = kFlagGreedy | kFlagScore | kFlagVerify | kFlagProcessed | kFlagEntropy | kFlagKeptTokens;
  return !kChained && g_row.top_p != 0u && g_row.top_k == 0u && !Has(others);
}

bool IsKeptByTopP(Token token) {
  g_last = token;
  u64 before = Sub64(MassOfKept().sum, WeightOf(token.key));
  return !Reaches(before, TopPThreshold(MassOfSections(kPartialProcessed).sum, g_row.top_p));
}

// Applies min-p, top-k and, unless the race comes first, top-p. The k-th largest of the groups' largest keys bounds the
// k-th key from below, so top-k looks at about k groups.
void Filter(u32 max_key, bool races_first) {
  if (Has(kFlagGreedy)) return;
  g_last.key = MinPFloor(max_key);
  for (u32 search = kGroupMaxima; search <= kTokenWeights; ++search) {
    if (search == kTokenWeights ? g_row.top_p == 0u || races_first : g_row.top_k == 0u) continue;
    Threshold target = MakeThreshold(Make64(g_row.top_k, 0u));
    if (search == kGroupMaxima) {
      if (g_row.top_k > CountOfGroups(g_last.key)) continue;
    } else {
      Mass mass;
      if (g_row.top_k != 0u) {
        mass = MassOfKept();
      } else {
        mass = MassOfSections(kPartialProcessed);
      }
      if (search == kTokens && mass.count <= g_row.top_k) continue;
      if (search == kTokenWeights) target = TopPThreshold(mass.sum, g_row.top_p);
    }
    Token cut = FindCut(search, target);
    if (search == kGroupMaxima) {
      g_last.key = max(g_last.key, cut.key);
    } else {
      g_last = cut;
    }
  }
}

// Returns the first of the tokens with the largest key.
Token First(u32 max_key) {
  u32 listed = ListGroups(max_key);
  u32 first = kNone;
  for (u32 i = thread; i < ScanLength(listed); i += kThreads) {
    Token token = Scan(listed, i);
    if (token.key == max_key) first = min(first, token.id);
  }
  Token result;
  result.key = max_key;
  result.id = ~MaxOfAll(~first);
  return result;
}

// Opens the tokens that the filters or the chain left. Returns the first kept token's key; 0 if no token is live.
u32 Open(bool races_first) {
  if (kChained) return outputs[row].max_key == kNone ? 0u : OpenKept();
  u32 max_key = LargestKey();
  if (max_key == 0u) return 0u;
  ScaleFor(max_key);
  KeepAll();
  if (!Has(kFlagScore) || Has(kFlagProcessed | kFlagEntropy | kFlagKeptTokens)) Filter(max_key, races_first);
  if (thread == 0u) {
    outputs[row].max_key = max_key;
    outputs[row].last_key = g_last.key;
    outputs[row].last_token = g_last.id;
  }
  return max_key;
}

void main() {
  OpenRow(gl_WorkGroupID.x);
  if (!IsMine() || HasFailed()) return;
  LookAt(false);
  g_list = Area(KERNEL_LIST(g_groups));
  Token token;
  token.id = g_row.given;
  // Compilers copy functions to each place that calls them, so both turns share one.
  for (bool races_first = RacesFirst();; races_first = false) {
    u32 first_key = Open(races_first);
    if (first_key == 0u) return;
    if (Has(kFlagGreedy)) {
      token = First(first_key);
      if (thread == 0u) outputs[row].first_token = token.id;
    } else if (!Has(kFlagScore | kFlagVerify)) {
      g_draw = KeyOfRow();
      token = Race(first_key);
    }
    if (!races_first || IsKeptByTopP(token)) break;
  }
  if (Has(kFlagScore)) {
    token.id = g_row.given;
    token.key = KeyOf(token.id);
  }
  if (thread != 0u) return;
  outputs[row].token = token.id;
  outputs[row].token_key = token.key;
}

// Sums, ranks and leading tokens of the distributions that rows want. A workgroup describes one: x counts rows, y is 0
// for the processed and 1 for the raw distribution.
#version 450
#extension GL_GOOGLE_include_directive : require
#include "kernels/vulkan/select.glsl"
#include "kernels/vulkan/mass.glsl"

// Returns the answer's token, with key 0 if it is not in the distribution.
Token Chosen() {
  Token chosen;
  chosen.id = outputs[row].token;
  chosen.key = g_raw ? KeyOf(chosen.id) : outputs[row].token_key;
  if (!IsKept(chosen)) chosen.key = 0u;
  return chosen;
}

// Returns 1 + the number of kept tokens before `chosen`.
u32 RankOf(Token chosen) {
  u32 listed = ListGroups(chosen.key);
  u32 count = 0u;
  for (u32 i = thread; i < ScanLength(listed); i += kThreads) {
    Token token = Scan(listed, i);
    if (Before(token.key, token.id, chosen.key, chosen.id) && IsKept(token)) ++count;
  }
  return 1u + CountOfAll(count);
}

// Writes the first `count` of the `kept` tokens, in no particular order, and returns their number. Drops all other kept
// tokens.
u32 WriteTop(u32 kept, u32 count, u32 at) {
  if (count < kept) g_last = FindCut(kTokens, MakeThreshold(Make64(count, 0u)));
  u32 listed = ListGroups(g_last.key);
  barrier();
  if (thread == 0u) shared_count = 0u;
  barrier();
  for (u32 i = thread; i < ScanLength(listed); i += kThreads) {
    Token token = Scan(listed, i);
    if (token.key == 0u || !IsKept(token)) continue;
    u32 place = at + atomicAdd(shared_count, 1u);
    tops[2u * place] = token.key;
    tops[2u * place + 1u] = token.id;
  }
  barrier();
  return shared_count;
}

void main() {
  OpenRow(gl_WorkGroupID.x);
  bool raw = gl_WorkGroupID.y == 1u;
  if (!IsMine() || !IsSampled() || !Has(raw ? kFlagRaw : kFlagProcessed)) return;
  LookAt(raw);
  // The two distributions of a row are described at the same time.
  g_list = Area(raw ? KERNEL_LIST(g_groups) : KERNEL_SURVIVORS(g_groups));
  KeepAll();
  u32 max_key = raw ? LargestKey() : OpenKept();
  Mass mass;
  if (raw) {
    mass = MassOfSections(kPartialRaw);
  } else {
    mass = MassOfSampled();
  }
  Token chosen = Chosen();
  DistributionOutput result;
  result.max_key = max_key;
  result.sum_low = Low(mass.sum);
  result.sum_high = High(mass.sum);
  result.chosen_key = chosen.key;
  result.rank = chosen.key == 0u ? 0u : RankOf(chosen);
  result.top_count = 0u;
  u32 top = raw ? g_row.raw_top : g_row.processed_top;
  if (top != 0u) result.top_count = WriteTop(mass.count, top, raw ? g_row.raw_tops : g_row.processed_tops);
  if (thread != 0u) return;
  if (raw) {
    outputs[row].raw = result;
  } else {
    outputs[row].kept = mass.count;
    outputs[row].processed = result;
  }
}

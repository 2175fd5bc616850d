// Outputs of rows that need their kept tokens one by one: all of them, and the sums of an entropy. A workgroup lists a
// row; x counts rows.
#version 450
#extension GL_GOOGLE_include_directive : require
#include "kernels/vulkan/scan.glsl"

void main() {
  OpenRow(gl_WorkGroupID.x);
  if (!IsMine() || !Has(kFlagEntropy | kFlagKeptTokens) || !IsSampled()) return;
  LookAt(false);
  g_list = Area(KERNEL_LIST(g_groups));
  OpenKept();
  u32 listed = ListGroups(g_last.key);
  barrier();
  if (thread == 0u) shared_count = 0u;
  barrier();
  u64 weights = Make64(0u, 0u);
  u64 surplus = Make64(0u, 0u);
  for (u32 i = thread; i < ScanLength(listed); i += kThreads) {
    Token token = Scan(listed, i);
    if (token.key == 0u || !IsKept(token)) continue;
    if (Has(kFlagKeptTokens)) {
      u32 place = g_row.kept_tokens + atomicAdd(shared_count, 1u);
      tops[2u * place] = token.key;
      tops[2u * place + 1u] = token.id;
    }
    if (Has(kFlagEntropy)) {
      u32 t = DistanceOf(token.key);
      u64 weight = Weight(t);
      weights = Add64(weights, weight);
      surplus = Add64(surplus, Surplus(weight, t));
    }
  }
  barrier();
  if (thread == 0u && Has(kFlagKeptTokens)) outputs[row].kept = shared_count;
  if (!Has(kFlagEntropy)) return;
  weights = SumOfAll(weights);
  surplus = SumOfAll(surplus);
  if (thread != 0u) return;
  outputs[row].entropy_weights_low = Low(weights);
  outputs[row].entropy_weights_high = High(weights);
  outputs[row].entropy_surplus_low = Low(surplus);
  outputs[row].entropy_surplus_high = High(surplus);
}

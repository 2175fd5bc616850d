// Searches among a chain's kept tokens. A workgroup searches a row; x counts rows.
#version 450
#extension GL_GOOGLE_include_directive : require
#include "kernels/vulkan/select.glsl"

void main() {
  OpenRow(gl_WorkGroupID.x);
  if (!IsMine() || !IsSampled()) return;
  u32 search = outputs[row].chain.search;
  if (outputs[row].chain.stage == kChainEnd || search == kNone) return;
  LookAt(false);
  g_list = Area(KERNEL_LIST(g_groups));
  OpenKept();
  g_mean = outputs[row].chain.mean;
  g_log_sum = outputs[row].chain.log_sum;
  u64 target = Make64(outputs[row].chain.target_low, outputs[row].chain.target_high);
  Token cut = FindCut(search, MakeThreshold(target));
  if (thread != 0u) return;
  outputs[row].chain.cut_key = cut.key;
  outputs[row].chain.cut_token = cut.id;
}

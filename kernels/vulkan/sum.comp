// Sums over a chain's kept tokens. A workgroup sums a row; x counts rows.
#version 450
#extension GL_GOOGLE_include_directive : require
#include "kernels/vulkan/scan.glsl"
#include "kernels/vulkan/chain.glsl"

Scale g_unit;  // scale of the unit shape, for levels
u32 g_log_sum;
u32 g_summed;

void AddToSums(inout StageSums sums, u32 key) {
  if (g_summed == kSumCounts) {
    ++sums.count;
  } else if (g_summed == kSumLevels) {
    sums = WithLevel(sums, ShapedBits(KeyBits(key), g_shape), g_unit);
  } else if (g_summed == kSumTerms) {
    ++sums.count;
    sums.second = Add64(sums.second, EntropyTerm(DistanceOf(key), g_log_sum));
  } else {
    sums = WithDistance(sums, g_summed, DistanceOf(key));
  }
}

// Returns the thread's sums.
StageSums SumTokens() {
  StageSums sums = NoSums();
  u32 listed = ListGroups(g_last.key);
  for (u32 i = thread; i < ScanLength(listed); i += kThreads) {
    Token token = Scan(listed, i);
    if (token.key != 0u && IsKept(token)) AddToSums(sums, token.key);
  }
  return sums;
}

u32 CountKeptGroups() {
  u32 count = 0u;
  for (u32 i = thread; i < g_groups; i += kThreads) {
    Token token;
    token.key = scratch[g_maxima + i];
    token.id = 0u;
    if (IsKept(token)) ++count;
  }
  return count;
}

void main() {
  OpenRow(gl_WorkGroupID.x);
  if (!IsMine() || HasFailed()) return;
  LookAt(false);
  g_list = Area(KERNEL_LIST(g_groups));
  g_summed = outputs[row].chain.summed;
  if (outputs[row].chain.stage == kNone) {
    u32 max_key = LargestKey();
    if (thread == 0u && max_key != 0u) outputs[row].max_key = max_key;
    return;
  }
  if (outputs[row].chain.stage == kChainEnd || g_summed == kSumNothing || g_summed == kSumFallOff ||
      g_summed == kSumDecay) {
    return;
  }
  OpenKept();
  g_unit = UnitShape(g_shape, KeyBits(g_first.key)).scale;
  g_log_sum = outputs[row].chain.log_sum;
  StageSums sums = NoSums();
  if (g_summed == kSumGroups) {
    sums.count = CountKeptGroups();
  } else {
    sums = SumTokens();
  }
  u32 count = CountOfAll(sums.count);
  // Takes the two sums in turn, because they share memory.
  for (u32 i = 0u; i < 2u && g_summed != kSumCounts && g_summed != kSumGroups; ++i) {
    u64 sum = SumOfAll(sums.first);
    if (thread == 0u && i == 0u) {
      outputs[row].chain.first_low = Low(sum);
      outputs[row].chain.first_high = High(sum);
    } else if (thread == 0u) {
      outputs[row].chain.second_low = Low(sum);
      outputs[row].chain.second_high = High(sum);
    }
    sums.first = sums.second;
  }
  if (thread == 0u) outputs[row].chain.count = count;
}

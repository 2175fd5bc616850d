// Sums over a chain's kept tokens. A workgroup sums a row; x counts rows.
#version 450
#extension GL_GOOGLE_include_directive : require
#include "kernels/vulkan/scan.glsl"
#include "kernels/vulkan/summed.glsl"

Scale g_unit;  // at temperature 1, for levels
u32 g_log_sum;
u32 g_summed;

struct Sums {
  u32 count;
  u64 first;
  u64 second;
};

void AddToSums(inout Sums sums, u32 key) {
  ++sums.count;
  if (g_summed == kCounts) return;
  if (g_summed == kLevels) {
    i32 level = i32(Level(ShapedBits(KeyBits(key), g_shape), g_unit));
    u32 size = u32(abs(level));
    sums.first = AddSigned64(sums.first, level);
    sums.second = Add64(sums.second, Mul32(size, size));
    return;
  }
  u32 t = DistanceOf(key);
  if (g_summed == kEntropyTerms) {
    sums.second = Add64(sums.second, EntropyTerm(t, g_log_sum));
    return;
  }
  sums.first = Add64(sums.first, Weight(t));
  if (g_summed == kMoments) sums.second = Add64(sums.second, Moment(t));
  if (g_summed == kSquares) sums.second = Add64(sums.second, SquaredWeight(t));
}

// Of the thread.
Sums SumTokens() {
  Sums sums;
  sums.count = 0u;
  sums.first = Make64(0u, 0u);
  sums.second = sums.first;
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
  if (outputs[row].chain.stage == kChainEnd || g_summed == kNothing || g_summed == kFallOff) return;
  OpenKept();
  g_unit = ScaleOf(ShapedBits(KeyBits(g_first.key), g_shape), UnitTemperature());
  g_log_sum = outputs[row].chain.log_sum;
  Sums sums;
  if (g_summed == kGroups) {
    sums.count = CountKeptGroups();
    sums.first = Make64(0u, 0u);
    sums.second = sums.first;
  } else {
    sums = SumTokens();
  }
  u32 count = CountOfAll(sums.count);
  // One after the other.
  for (u32 i = 0u; i < 2u && g_summed > kCounts; ++i) {
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

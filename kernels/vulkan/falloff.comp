// How a chain's kept tokens fall off, for mirostat 1. A workgroup looks at a row's, of which there are kMostSorted at
// most; x counts rows.
#version 450
#extension GL_GOOGLE_include_directive : require
#include "kernels/vulkan/scan.glsl"
#include "kernels/vulkan/sort.glsl"
#include "kernels/vulkan/summed.glsl"

// Sorts the kept tokens, and returns their number.
u32 SortKept() {
  u32 listed = ListGroups(g_last.key);
  barrier();
  if (thread == 0u) shared_count = 0u;
  barrier();
  for (u32 i = thread; i < ScanLength(listed); i += kThreads) {
    Token token = Scan(listed, i);
    if (token.key == 0u || !IsKept(token)) continue;
    u32 place = atomicAdd(shared_count, 1u);
    sorted_keys[place] = token.key;
    sorted_ids[place] = token.id;
  }
  barrier();
  u32 count = shared_count;
  u32 size = SortedSize(count);
  for (u32 i = count + thread; i < size; i += kThreads) {
    sorted_keys[i] = 0u;
    sorted_ids[i] = kNone;
  }
  SortTokens(size);
  return count;
}

void main() {
  OpenRow(gl_WorkGroupID.x);
  if (!IsMine() || !IsSampled()) return;
  if (outputs[row].chain.stage == kChainEnd || outputs[row].chain.summed != kFallOff) return;
  LookAt(false);
  g_list = Area(KERNEL_LIST(g_groups));
  OpenKept();
  u32 count = SortKept();
  u64 terms = Make64(0u, 0u);
  u64 squares = terms;
  for (u32 i = thread; i + 1u < count; i += kThreads) {
    u32 next = DistanceOf(sorted_keys[i + 1u]);
    if (next == kDead) break;
    terms = Add64(terms, RankTerm(i, next - DistanceOf(sorted_keys[i])));
    squares = Add64(squares, RankSquare(i));
  }
  terms = SumOfAll(terms);
  squares = SumOfAll(squares);
  if (thread != 0u) return;
  outputs[row].chain.first_low = Low(terms);
  outputs[row].chain.first_high = High(terms);
  outputs[row].chain.second_low = Low(squares);
  outputs[row].chain.second_high = High(squares);
}

// Measures how a chain's kept tokens fall off, for mirostat 1 and min-k. A workgroup takes a row with at most
// kMostSorted kept tokens; x counts rows.
#version 450
#extension GL_GOOGLE_include_directive : require
#include "kernels/vulkan/scan.glsl"
#include "kernels/vulkan/sort.glsl"

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

// Leaves the largest decay of the sorted tokens, and their range. One thread calls this.
void LeaveDecay(u32 count) {
  Shape unit = UnitShape(g_shape, KeyBits(g_first.key));
  u64 decay = Make64(0u, 0u);
  u32 last = 0u;
  for (u32 i = 1u; i < count; ++i) {
    u32 depth = Depth(ShapedBits(KeyBits(sorted_keys[i]), unit), unit.scale);
    u64 own = DecayOf(i, depth - last);
    if (Less64(decay, own)) decay = own;
    last = depth;
  }
  outputs[row].chain.first_low = Low(decay);
  outputs[row].chain.first_high = High(decay);
  outputs[row].chain.second_low = last;
  outputs[row].chain.second_high = 0u;
}

void main() {
  OpenRow(gl_WorkGroupID.x);
  if (!IsMine() || !IsSampled()) return;
  u32 summed = outputs[row].chain.summed;
  if (outputs[row].chain.stage == kChainEnd || (summed != kSumFallOff && summed != kSumDecay)) return;
  LookAt(false);
  g_list = Area(KERNEL_LIST(g_groups));
  OpenKept();
  u32 count = SortKept();
  if (summed == kSumDecay) {
    if (thread == 0u) LeaveDecay(count);
    return;
  }
  StageSums sums = NoSums();
  for (u32 i = thread; i + 1u < count; i += kThreads) {
    u32 next = DistanceOf(sorted_keys[i + 1u]);
    if (next == kDead) break;
    sums = WithStep(sums, i, DistanceOf(sorted_keys[i]), next);
  }
  u64 terms = SumOfAll(sums.first);
  u64 squares = SumOfAll(sums.second);
  if (thread != 0u) return;
  outputs[row].chain.first_low = Low(terms);
  outputs[row].chain.first_high = High(terms);
  outputs[row].chain.second_low = Low(squares);
  outputs[row].chain.second_high = High(squares);
}

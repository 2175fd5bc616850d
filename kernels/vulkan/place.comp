// Finds the places of rows' requested tokens. A workgroup takes one distribution: x counts rows, y is 0 for the
// processed and 1 for the raw one.
//
// The requested tokens are sorted. Each token of the distribution counts for the first requested token after it. Sums
// of these counts are ranks.
#version 450
#extension GL_GOOGLE_include_directive : require
#include "kernels/vulkan/scan.glsl"
#include "kernels/vulkan/sort.glsl"

shared u32 passed[kMostSorted];

// Turns each of the first `size` counts into the sum up to it. `size` is a power of two.
void SumPassed(u32 size) {
  for (u32 run = 1u; run < size; run *= 2u) {
    barrier();
    for (u32 i = thread; i < size / (2u * run); i += kThreads) {
      u32 end = 2u * run * (i + 1u) - 1u;
      passed[end] += passed[end - run];
    }
  }
  for (u32 run = size / 4u; run > 0u; run /= 2u) {
    barrier();
    for (u32 i = thread; i + 1u < size / (2u * run); i += kThreads) {
      u32 end = 2u * run * (i + 1u) - 1u;
      passed[end + run] += passed[end];
    }
  }
  barrier();
}

// Returns requested token `index`, with key 0 if it is not in the distribution.
Token Requested(u32 index) {
  Token token;
  token.id = extras[g_row.requested + index];
  token.key = KeyOf(token.id);
  if (!IsKept(token)) token.key = 0u;
  return token;
}

// Sorts the requested tokens and returns the smallest key among those in the distribution.
u32 SortRequested(u32 size) {
  u32 inverse = 0u;  // largest of ~key
  for (u32 i = thread; i < size; i += kThreads) {
    Token token;
    token.key = 0u;
    token.id = kNone;
    if (i < g_row.requested_count) token = Requested(i);
    if (token.key != 0u) inverse = max(inverse, ~token.key);
    sorted_keys[i] = token.key;
    sorted_ids[i] = token.id;
    passed[i] = 0u;
  }
  inverse = MaxOfAll(inverse);
  SortTokens(size);
  return ~inverse;
}

void main() {
  OpenRow(gl_WorkGroupID.x);
  bool raw = gl_WorkGroupID.y == 1u;
  if (!IsMine() || !IsSampled() || g_row.requested_count == 0u) return;
  if (!Has(raw ? kFlagRaw : kFlagProcessed)) return;
  LookAt(raw);
  // The two distributions of a row are looked at at the same time.
  g_list = Area(raw ? KERNEL_LIST(g_groups) : KERNEL_SURVIVORS(g_groups));
  KeepAll();
  if (!raw) OpenKept();
  u32 size = SortedSize(g_row.requested_count);
  u32 floor = SortRequested(size);
  u32 listed = ListGroups(floor);
  for (u32 i = thread; i < ScanLength(listed); i += kThreads) {
    Token token = Scan(listed, i);
    if (token.key < floor || !IsKept(token)) continue;
    u32 next = SortedBefore(token, size, true);
    if (next < size) atomicAdd(passed[next], 1u);
  }
  SumPassed(size);
  u32 places = raw ? g_row.raw_places : g_row.processed_places;
  for (u32 i = thread; i < g_row.requested_count; i += kThreads) {
    Token token = Requested(i);
    tops[2u * (places + i)] = token.key;
    tops[2u * (places + i) + 1u] = token.key == 0u ? 0u : 1u + passed[SortedBefore(token, size, false)];
  }
}

// The one pass over the logits that every row pays: the largest key of each group, and the check of the domain.
//
// A workgroup reads a section of a row, 16 bytes a thread and load. x counts sections, y rows.
#version 450
#extension GL_GOOGLE_include_directive : require
#include "kernels/vulkan/row.glsl"

// One word for each 16 bytes of kThreads groups of f32, the widest elements.
shared i32 quad_maxima[16u * kThreads];

// Turns the bits of a float into a signed integer with the order of the floats; its own inverse. -NaN comes first, NaN
// last.
i32 Ordered(u32 bits) { return i32(bits ^ (u32(i32(bits) >> 31) & 0x7fffffffu)); }
const i32 kNothing = i32(0x80000000u);

// Integers >= FirstTooLarge() are too large or NaN; integers < FirstNumber() are NaN. 16-bit elements lie in the upper
// half of the word.
i32 FirstTooLarge() { return i32(g_row.dtype == kElementF16 ? 0x7bff0000u : 0x477fe000u); }
i32 FirstNumber() { return Ordered(g_row.dtype == kElementF16 ? 0xfc000000u : 0xff800000u); }

u32 WidenUpper(u32 bits) { return g_row.dtype == kElementF16 ? WidenF16(bits >> 16) : bits; }

// Element `i` of a load, in order, as bits in the upper half of a word or in all of it.
u32 ElementOf(uvec4 quad, u32 i) {
  if (g_row.dtype == kElementF32) return quad[i];
  u32 pair = quad[i >> 1];
  return (i & 1u) != 0u ? pair & 0xffff0000u : pair << 16;
}

// Returns the bitmap's bits for a load's tokens; all set if there is no bitmap. A load has 4 or 8 tokens, whose bits
// lie in one word.
u32 VisibleBits(u32 first) {
  if (g_raw || !Has(kFlagVisible)) return 0xffffffffu;
  return extras[g_row.visible + (first >> 5)] >> (first & 31u);
}

// Returns the largest visible logit of the tokens [first, first + count), as `Ordered`.
i32 LargestOf(uvec4 quad, u32 first, u32 count) {
  u32 visible = VisibleBits(first);
  i32 largest = kNothing;
  i32 highest = kNothing;
  i32 lowest = 0x7fffffff;
  for (u32 i = 0u; i < count; ++i) {
    i32 x = Ordered(ElementOf(quad, i));
    highest = max(highest, x);
    lowest = min(lowest, x);
    if ((visible >> i & 1u) != 0u) largest = max(largest, x);
  }
  if (highest < FirstTooLarge() && lowest >= FirstNumber()) return largest;

  largest = kNothing;
  for (u32 i = 0u; i < count; ++i) {
    u32 bits = WidenUpper(ElementOf(quad, i));
    bool nan = IsNan(bits);
    if (IsTooLarge(bits) || (nan && !Has(kFlagMaskNan))) {
      atomicMin(outputs[row].sent_error, 2u * (first + i) + (nan ? 0u : 1u));
    }
    if (!nan && (visible >> i & 1u) != 0u) largest = max(largest, Ordered(ElementOf(quad, i)));
  }
  return largest;
}

void ReadMaxima(u32 maxima) {
  u32 per_load = g_row.dtype == kElementF32 ? 4u : 8u;
  u32 loads = kGroupSize / per_load;  // loads of a group
  u32 section = gl_WorkGroupID.x * kSectionGroups;
  u32 section_end = min(section + kSectionGroups, g_groups);
  for (u32 begin = section; begin < section_end; begin += kThreads) {
    u32 groups = min(kThreads, section_end - begin);
    for (u32 i = thread; i < groups * loads; i += kThreads) {
      u32 first = begin * kGroupSize + i * per_load;
      u32 count = first < g_row.vocabulary ? min(per_load, g_row.vocabulary - first) : 0u;
      quad_maxima[i] = kNothing;
      if (count != 0u) quad_maxima[i] = LargestOf(logits_quads[g_row.logits + first / per_load], first, count);
    }
    barrier();
    if (thread < groups) {
      i32 largest = kNothing;
      // Threads start at different words, which lie in different banks.
      for (u32 i = 0u; i < loads; ++i) {
        largest = max(largest, quad_maxima[thread * loads + ((thread + i) & (loads - 1u))]);
      }
      scratch[maxima + begin + thread] = Key(Canonical(WidenUpper(u32(Ordered(u32(largest))))));
    }
    barrier();
  }
}

void main() {
  OpenRow(gl_WorkGroupID.y);
  if (gl_WorkGroupID.x * kSectionGroups >= g_groups) return;
  g_raw = false;
  ReadMaxima(Maxima());
  if (Has(kFlagVisible) && Has(kFlagRaw)) {
    g_raw = true;
    ReadMaxima(RawMaxima());
  }
}

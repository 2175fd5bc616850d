// A row as a kernel sees it: the sent logits, a bitmap of the tokens that show theirs, and the edited tokens.
//
// One workgroup looks at one row. Logits are never rewritten: each read makes a token's key from its sent logit. The
// largest keys of groups tell which groups need to be read.
#ifdef KERNEL_SUBGROUPS
#extension GL_KHR_shader_subgroup_arithmetic : require
#extension GL_KHR_shader_subgroup_ballot : require
#endif

// The law's tables lie before the extras. If a shader held them, many compilers would turn every look-up into a tree of
// 32 branches.
layout(std430, binding = 2) readonly buffer Extras { uint extras[]; };
const uint kPowersAt = 0u;
const uint kInversesAt = 32u;
const uint kLogsAt = 64u;
#define LAW_LOOK_UP(name, index) extras[name##At + (index)]
#include "kernels/law/law.glsl"

#define KERNEL_CONSTANT const
#include "kernels/vulkan/layout.inc"

layout(local_size_x_id = 0, local_size_y = 1, local_size_z = 1) in;
layout(constant_id = 0) const u32 kThreads = 256u;
// Shaders whose workgroup takes a whole row come in two forms: for rows without a chain, and for those with one.
layout(constant_id = 1) const bool kChained = false;

layout(std430, binding = 0) readonly buffer Logits { u32 logits[]; };
layout(std430, binding = 0) readonly buffer LogitsQuads { uvec4 logits_quads[]; };
layout(std430, binding = 1) readonly buffer Inputs { RowInput inputs[]; };
layout(std430, binding = 3) coherent buffer Scratch { u32 scratch[]; };
layout(std430, binding = 4) buffer Outputs { RawOutput outputs[]; };
layout(std430, binding = 5) buffer Tops { u32 tops[]; };

u32 thread;  // index in the workgroup
u32 row;
RowInput g_row;
u32 g_groups;

void OpenRow(u32 index) {
  thread = gl_LocalInvocationIndex;
  row = index;
  g_row = inputs[index];
  g_groups = (g_row.vocabulary + kGroupSize - 1u) / kGroupSize;
}

// True if any of these flags is set.
bool Has(u32 flags) { return (g_row.flags & flags) != 0u; }

// True if this pipeline takes the row.
bool IsMine() { return Has(kFlagChain) == kChained; }

u32 Area(u32 offset) { return g_row.scratch + offset; }
u32 Maxima() { return Area(KERNEL_MAXIMA(g_groups)); }
u32 RawMaxima() { return Has(kFlagVisible) ? Area(KERNEL_RAW_MAXIMA(g_groups)) : Maxima(); }

// True if the row failed when it was read or changed.
bool HasFailed() { return outputs[row].sent_error != kNone || outputs[row].changed_error != kNone; }
// True if the row has not failed and has a live token. Valid after sample.comp.
bool IsSampled() { return !HasFailed() && outputs[row].max_key != kNone; }

// Element `id` of a tensor that begins at `begin`, in 16-byte units of the logits.
u32 ElementBits(u32 begin, u32 dtype, u32 id) {
  if (dtype == kElementF32) return logits[4u * begin + id];
  u32 pair = logits[4u * begin + (id >> 1)];
  u32 element = (id & 1u) != 0u ? pair >> 16 : pair & 0xffffu;
  return dtype == kElementF16 ? WidenF16(element) : WidenBf16(element);
}
u32 SentBits(u32 id) { return ElementBits(g_row.logits, g_row.dtype, id); }

bool IsVisible(u32 id) { return (extras[g_row.visible + (id >> 5)] >> (id & 31u) & 1u) != 0u; }

u32 EditedToken(u32 index) { return extras[g_row.edits + index * kEditWords]; }
u32 EditedKey(u32 index) { return scratch[Area(KERNEL_EDIT_KEYS(g_groups)) + index]; }

DrawKey KeyOfRow() {
  DrawKey key;
  key.seed_low = g_row.seed_low;
  key.seed_high = g_row.seed_high;
  key.position = g_row.position;
  key.stream = g_row.stream;
  return key;
}

// The distribution a kernel looks at: as sent, or as changed.
bool g_raw;

// Returns the token's key as it was sent; 0 if it is not live, or edited.
u32 SentKey(u32 id) {
  if (id >= g_row.vocabulary) return 0u;
  if (!g_raw && Has(kFlagVisible) && !IsVisible(id)) return 0u;
  return Key(Canonical(SentBits(id)));
}

// Returns the same, but an edited token's changed key.
u32 KeyOf(u32 id) {
  if (g_raw || !Has(kFlagVisible) || IsVisible(id)) return SentKey(id);
  u32 first = 0u;
  u32 end = g_row.edit_count;
  while (first < end) {
    u32 middle = (first + end) / 2u;
    if (EditedToken(middle) < id) {
      first = middle + 1u;
    } else {
      end = middle;
    }
  }
  return first < g_row.edit_count && EditedToken(first) == id ? EditedKey(first) : 0u;
}

u32 EditCount() { return g_raw ? 0u : g_row.edit_count; }

// Computes the keys of edited tokens. A thread changes a token; y counts rows.
#version 450
#extension GL_GOOGLE_include_directive : require
#include "kernels/vulkan/row.glsl"

void main() {
  OpenRow(gl_WorkGroupID.y);
  u32 index = gl_GlobalInvocationID.x;
  if (index >= g_row.edit_count) return;
  u32 at = g_row.edits + index * kEditWords;
  u32 token = extras[at];
  bool repeated = extras[at + 2u] != 0u;
  u32 bits = Changed(Canonical(SentBits(token)), extras[at + 1u], repeated ? g_row.repetition : 0u,
                     repeated ? g_row.inverse_repetition : 0u, extras[at + 3u]);
  if (IsTooLarge(bits)) {
    atomicMin(outputs[row].changed_error, token);
    bits = kMaskedBits;
  }
  scratch[Area(KERNEL_EDIT_KEYS(g_groups)) + index] = Key(bits);
}

// Sums weights over whole rows that need it: of the raw distribution, and of the changed row after min-p. A workgroup
// weighs a section of a row; x counts sections, y rows.
#version 450
#extension GL_GOOGLE_include_directive : require
#include "kernels/vulkan/scan.glsl"
#include "kernels/vulkan/mass.glsl"

// True if the processed distribution's sum is taken here, because only min-p comes before it.
bool WeighsProcessed() {
  if (Has(kFlagGreedy | kFlagChain) || g_row.top_k != 0u) return false;
  return g_row.top_p != 0u || Has(kFlagProcessed | kFlagVerify);
}

// Leaves the mass of the section's tokens with a key >= `floor`.
void Weigh(u32 section, u32 floor, u32 which) {
  u32 first = section * kSectionGroups * kGroupSize;
  u32 end = min(first + kSectionGroups * kGroupSize, g_row.vocabulary);
  Mass mass = NoMass();
  for (u32 id = first + thread; id < end; id += kThreads) {
    u32 key = SentKey(id);
    if (key >= floor) AddToMass(mass, key);
  }
  // The first section weighs the edited tokens, too.
  for (u32 i = thread; section == 0u && i < EditCount(); i += kThreads) {
    if (EditedKey(i) >= floor) AddToMass(mass, EditedKey(i));
  }
  mass = MassOfAll(mass);
  if (thread != 0u) return;
  u32 at = PartialOfSection(section) + which;
  scratch[at] = Low(mass.sum);
  scratch[at + 1u] = High(mass.sum);
  scratch[at + 2u] = mass.count;
}

void main() {
  OpenRow(gl_WorkGroupID.y);
  u32 section = gl_WorkGroupID.x;
  if (section * kSectionGroups >= g_groups || HasFailed()) return;
  for (u32 raw = 0u; raw < 2u; ++raw) {
    if (raw == 0u ? !WeighsProcessed() : !Has(kFlagRaw)) continue;
    LookAt(raw != 0u);
    u32 max_key = LargestKey();
    if (max_key == 0u) return;
    ScaleFor(max_key);
    Weigh(section, g_raw ? 1u : MinPFloor(max_key), g_raw ? kPartialRaw : kPartialProcessed);
  }
}

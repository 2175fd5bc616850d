// The least that a sampler can do: read every bf16 logit once and keep the largest, as integers, of each row. y counts
// rows.
#version 450

layout(local_size_x_id = 0, local_size_y = 1, local_size_z = 1) in;
layout(constant_id = 0) const uint kThreads = 256u;

layout(std430, binding = 0) readonly buffer Logits { uvec4 quads[]; };
layout(std430, binding = 1) buffer Maxima { int maxima[]; };
layout(push_constant) uniform Row { uint quads_a_row; };

shared int largest_of_group;

int LargestOf(uint pair) { return max(int(pair << 16), int(pair & 0xffff0000u)); }

void main() {
  if (gl_LocalInvocationIndex == 0u) largest_of_group = int(0x80000000u);
  barrier();
  int largest = int(0x80000000u);
  uint row = gl_WorkGroupID.y * quads_a_row;
  uint step = gl_NumWorkGroups.x * kThreads;
  for (uint i = gl_GlobalInvocationID.x; i < quads_a_row; i += step) {
    uvec4 quad = quads[row + i];
    largest = max(largest, max(max(LargestOf(quad.x), LargestOf(quad.y)), max(LargestOf(quad.z), LargestOf(quad.w))));
  }
  atomicMax(largest_of_group, largest);
  barrier();
  if (gl_LocalInvocationIndex == 0u) atomicMax(maxima[gl_WorkGroupID.y], largest_of_group);
}

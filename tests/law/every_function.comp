// The law's text as a Vulkan compute shader.
#version 450
#extension GL_GOOGLE_include_directive : require
#include "kernels/law/law.glsl"
#include "tests/law/every_function.inc"

layout(local_size_x = 64) in;
layout(std430, binding = 0) buffer Words { uint words[]; };

void main() { words[gl_GlobalInvocationID.x] = EveryFunction(words[gl_GlobalInvocationID.x]); }

// The compute shaders, compiled at build time, and the rules for running them.
//
// All take the six buffers of Chunk::Sizes as storage buffers at bindings 0 to 5, in its order, and two specialisation
// constants: 0 is the workgroup's number of threads, a power of two; 1 makes a shader that takes whole rows take those
// with a chain, or those without. They run in the order of Shader, each after the one before has written. Before the
// first the outputs are filled with kNone.
#pragma once

#include <cstdint>
#include <span>

#include "kernels/features.h"

namespace sortition::kernels::vulkan {

enum class Shader {
  kRead,
  kEdit,
  kWeigh,
  kSum,  // this and the next three by turns
  kFallOff,
  kChain,
  kSearch,
  kSample,
  kVerify,
  kDescribe,
  kPlace,
  kList
};
inline constexpr int kShaders = 12;
// True if ordinary rows need it; the others serve features.
constexpr bool IsCommon(Shader shader) {
  return shader <= Shader::kWeigh || shader == Shader::kSample || shader == Shader::kDescribe;
}
// True if each workgroup takes a whole row, not a part of one.
constexpr bool TakesWholeRows(Shader shader) { return shader >= Shader::kSum; }
inline constexpr uint32_t kBindings = 6;

// Features beyond Vulkan 1.1's core that a shader uses. The outputs are the same.
struct Variant {
  bool int64 = false;      // integers of 64 bits (shaderInt64)
  bool subgroups = false;  // subgroup operations in compute shaders: basic, ballot, arithmetic
  bool operator==(const Variant&) const = default;
};
inline constexpr Variant kVariants[] = {{false, false}, {true, false}, {false, true}, {true, true}};
// "plain", "int64", "subgroups" or "int64_subgroups".
const char* VariantName(Variant variant);

// SPIR-V for Vulkan 1.1; the plain variant has no capability but Shader.
std::span<const uint32_t> SpirV(Shader shader, Variant variant);
// Features of features.h that the shaders have.
inline constexpr Features kFeatures =
    kFeatureEveryStage | kFeatureScore | kFeatureVerify | kFeatureRequested | kFeatureEntropy | kFeatureKeptSet;

// Bytes of workgroup memory that a shader needs.
uint32_t SharedBytes(Shader shader, uint32_t threads);

// Returns the most tokens of a row that workgroups of `threads` threads can sample. Some drivers (Mesa's llvmpipe) end
// a loop silently after 65,535 iterations, counted over all loops of an invocation. A row this long stays below 60,000
// with any options.
inline uint32_t MaxVocabulary(uint32_t threads) { return threads * 1024; }
// Returns the most tokens for each thread where a device offers more threads: verify.comp does more work for a token.
constexpr uint32_t TokensOfThread(Shader shader) { return shader == Shader::kVerify ? 256 : 1024; }

}  // namespace sortition::kernels::vulkan

// The shaders' words, as glslc wrote them.
#include "kernels/vulkan/shaders.h"

namespace sortition::kernels::vulkan {
namespace {

#define SORTITION_QUOTE(text) #text
#define SORTITION_FILE(variant, shader) SORTITION_QUOTE(variant##_##shader.spv.inc)
#define SORTITION_SPIRV_OF(variant, shader) SORTITION_FILE(variant, shader)
#define SORTITION_SPIRV(shader) SORTITION_SPIRV_OF(SORTITION_VARIANT, shader)
#define SORTITION_VARIANT plain
#include "kernels/vulkan/spirv.inc"
#undef SORTITION_VARIANT
#define SORTITION_VARIANT int64
#include "kernels/vulkan/spirv.inc"
#undef SORTITION_VARIANT
#define SORTITION_VARIANT subgroups
#include "kernels/vulkan/spirv.inc"
#undef SORTITION_VARIANT
#define SORTITION_VARIANT int64_subgroups
#include "kernels/vulkan/spirv.inc"
#undef SORTITION_VARIANT

}  // namespace

const char* VariantName(Variant variant) {
  if (variant.int64) return variant.subgroups ? "int64_subgroups" : "int64";
  return variant.subgroups ? "subgroups" : "plain";
}

std::span<const uint32_t> SpirV(Shader shader, Variant variant) {
  if (variant.int64) return (variant.subgroups ? int64_subgroups::kShaders : int64::kShaders)[int(shader)];
  return (variant.subgroups ? subgroups::kShaders : plain::kShaders)[int(shader)];
}

uint32_t SharedBytes(Shader shader, uint32_t threads) {
  constexpr uint32_t kBins = 2 * 256 * 4;
  constexpr uint32_t kSorted = 2 * 1024 * 4;
  constexpr uint32_t kRest = 64;
  switch (shader) {
    case Shader::kRead:
      return 64 * threads;
    case Shader::kEdit:
      return 0;
    case Shader::kWeigh:
      return kRest;
    case Shader::kSum:
      return kRest;
    case Shader::kFallOff:
      return kSorted + kRest;
    case Shader::kChain:
      return 0;
    case Shader::kSearch:
      return kBins + kRest;
    case Shader::kSample:
      return 16 * threads + kBins + kRest;
    case Shader::kVerify:
      return 16 * threads + kRest;
    case Shader::kDescribe:
      return kBins + kRest;
    case Shader::kPlace:
      return kSorted + 1024 * 4 + kRest;
    case Shader::kList:
      return kRest;
  }
  __builtin_unreachable();
}

}  // namespace sortition::kernels::vulkan

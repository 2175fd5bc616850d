// The shaders' words, as glslc wrote them.
#include "kernels/vulkan/shaders.h"

namespace sortition::kernels::vulkan {
namespace {

constexpr uint32_t kRead[] = {
#include "read.spv.inc"
};
constexpr uint32_t kChange[] = {
#include "change.spv.inc"
};
constexpr uint32_t kWeigh[] = {
#include "weigh.spv.inc"
};
constexpr uint32_t kSample[] = {
#include "sample.spv.inc"
};
constexpr uint32_t kDescribe[] = {
#include "describe.spv.inc"
};

}  // namespace

std::span<const uint32_t> SpirV(Shader shader) {
  switch (shader) {
    case Shader::kRead:
      return kRead;
    case Shader::kChange:
      return kChange;
    case Shader::kWeigh:
      return kWeigh;
    case Shader::kSample:
      return kSample;
    case Shader::kDescribe:
      return kDescribe;
  }
  __builtin_unreachable();
}

uint32_t SharedBytes(Shader shader, uint32_t threads) {
  constexpr uint32_t kBins = 2 * 256 * 4;
  constexpr uint32_t kRest = 64;
  switch (shader) {
    case Shader::kRead:
      return 64 * threads;
    case Shader::kChange:
      return 0;
    case Shader::kWeigh:
      return kRest;
    case Shader::kSample:
      return 16 * threads + kBins + kRest;
    case Shader::kDescribe:
      return kBins + kRest;
  }
  __builtin_unreachable();
}

}  // namespace sortition::kernels::vulkan

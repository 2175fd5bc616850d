// Contents of the shaders: integers of 32 bits and no feature that a driver of Vulkan 1.1 may lack.
#include <gtest/gtest.h>

#include <set>

#include "kernels/vulkan/shaders.h"

namespace sortition::kernels::vulkan::shader_test {
namespace {

// Constants of the SPIR-V specification.
constexpr uint32_t kMagic = 0x07230203;
constexpr uint32_t kVersion13 = 0x00010300;  // the newest SPIR-V of Vulkan 1.1
constexpr uint32_t kHeaderWords = 5;
constexpr uint32_t kOpExtension = 10;
constexpr uint32_t kOpCapability = 17;
constexpr uint32_t kOpTypeInt = 21;
constexpr uint32_t kOpTypeFloat = 22;
constexpr uint32_t kOpUMulExtended = 151;
constexpr uint32_t kCapabilityShader = 1;

// The others look at keys alone.
bool CalculatesWide(Shader shader) { return shader != Shader::kRead && shader != Shader::kPlace; }

class Shaders : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(, Shaders, ::testing::Range(0, kShaders));

// Without a type of floating point there is no arithmetic on it, and no conversion to it or from it.
TEST_P(Shaders, UseOnly32BitIntegers) {
  const std::span<const uint32_t> words = SpirV(Shader(GetParam()), Variant{});
  ASSERT_GT(words.size(), kHeaderWords);
  ASSERT_EQ(words[0], kMagic);
  EXPECT_LE(words[1], kVersion13);
  std::set<uint32_t> opcodes;
  for (size_t at = kHeaderWords; at < words.size();) {
    const uint32_t opcode = words[at] & 0xffff;
    const uint32_t length = words[at] >> 16;
    ASSERT_GE(length, 1u);
    opcodes.insert(opcode);
    if (opcode == kOpCapability) {
      EXPECT_EQ(words[at + 1], kCapabilityShader);
    }
    if (opcode == kOpTypeInt) {
      EXPECT_EQ(words[at + 2], 32u);
    }
    at += length;
  }
  EXPECT_FALSE(opcodes.contains(kOpTypeFloat));
  EXPECT_FALSE(opcodes.contains(kOpExtension));
  // The walk has seen the arithmetic.
  if (CalculatesWide(Shader(GetParam()))) {
    EXPECT_TRUE(opcodes.contains(kOpUMulExtended));
  }
}

// Variants hold no floating point either.
TEST_P(Shaders, UseOnlyIntegersInEveryVariant) {
  for (const Variant variant : kVariants) {
    const std::span<const uint32_t> words = SpirV(Shader(GetParam()), variant);
    std::set<uint32_t> widths;
    for (size_t at = kHeaderWords; at < words.size(); at += words[at] >> 16) {
      ASSERT_GE(words[at] >> 16, 1u);
      EXPECT_NE(words[at] & 0xffff, kOpTypeFloat) << VariantName(variant);
      if ((words[at] & 0xffff) == kOpTypeInt) widths.insert(words[at + 2]);
    }
    EXPECT_EQ(widths.contains(64), variant.int64 && CalculatesWide(Shader(GetParam()))) << VariantName(variant);
  }
}

}  // namespace
}  // namespace sortition::kernels::vulkan::shader_test

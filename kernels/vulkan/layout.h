// layout.inc for C++.
#pragma once

#include <cstdint>

namespace sortition::kernels::vulkan {

using u32 = uint32_t;
using i32 = int32_t;

#define KERNEL_CONSTANT inline constexpr
#include "kernels/vulkan/layout.inc"
#undef KERNEL_CONSTANT

}  // namespace sortition::kernels::vulkan

// Output of the kernels for a row.
#pragma once

#include <cstdint>

#include "kernels/row.h"
#include "kernels/vulkan/layout.h"

namespace sortition::kernels::vulkan {

// `tops` are the whole chunk's. Pure and thread-safe.
RowOutput ReadOutput(const RowRequest& request, const RowInput& input, const RawOutput& output, const uint32_t* tops);

}  // namespace sortition::kernels::vulkan

// The version of the sampling law that this tree implements (kernels/law/LAW.md).
#pragma once

#include <cstdint>

namespace sortition::law {

// A sequence names its law version when it opens. Two builds with the same version give the same bits.
inline constexpr uint32_t kLawVersion = 1;

}  // namespace sortition::law

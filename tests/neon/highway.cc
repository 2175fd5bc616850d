// Stands in for Highway's library, which is not built for another processor: every AArch64 has NEON.
#include <cstdint>

#include "hwy/targets.h"

namespace hwy {
int64_t SupportedTargets() { return HWY_TARGETS; }
}  // namespace hwy

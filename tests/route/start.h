// Start of the tests' time.
#pragma once

#include "absl/time/time.h"

namespace sortition::service {

inline const absl::Time kStart = absl::FromUnixSeconds(1'000'000'000);

}  // namespace sortition::service

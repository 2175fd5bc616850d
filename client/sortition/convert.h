// Converts the lower layers' statuses to the library's.
#pragma once

#include "absl/status/status.h"
#include "client/sortition/sampler.h"

namespace sortition {

Status ToPublic(const absl::Status& status);
inline Status InvalidArgument(std::string message) { return {StatusCode::kInvalidArgument, std::move(message)}; }

}  // namespace sortition

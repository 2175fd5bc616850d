// The answers of a device to the published golden rows, for vectors.json (docs/proof.md).
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "devices/device.h"

namespace sortition::archive {

// Returns vectors.json. Null: a service, which takes no golden rows. Blocks for some hundred milliseconds on a CPU.
absl::StatusOr<std::string> AnswerVectors(devices::Device* device);

}  // namespace sortition::archive

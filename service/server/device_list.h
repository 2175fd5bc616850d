// The devices that a configuration asks for.
#pragma once

#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "devices/device.h"
#include "service/server/config.h"

namespace sortition::server {

// Starts one device for each entry of `config.devices`. The error names the kind that this build does not have or that
// cannot start.
absl::StatusOr<std::vector<std::unique_ptr<devices::Device>>> StartDevices(const Config& config);

}  // namespace sortition::server

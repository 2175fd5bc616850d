// The devices of this machine.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "devices/cuda/hardware.h"
#include "devices/device.h"

namespace sortition {

struct FoundDevices {
  std::vector<std::unique_ptr<devices::Device>> started;
  std::vector<devices::cuda::Hardware> cuda;  // of those that have started
  // Drivers and devices that are there and do not start, and kinds that there are none of; stderr says why.
  uint32_t failed = 0;
};

// All devices of these kinds: "cpu", "cuda", "vulkan". A kind without a driver, or whose driver finds no device, is
// named on stderr and skipped. Blocks for as long as drivers take.
FoundDevices StartFoundDevices(const std::vector<std::string>& kinds);

}  // namespace sortition

// The devices of this machine.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "devices/cuda/hardware.h"
#include "devices/device.h"
#include "kernels/cuda/image.h"

namespace sortition {

struct FoundDevices {
  std::vector<std::unique_ptr<devices::Device>> started;
  std::vector<devices::cuda::Hardware> cuda;  // the started ones'
  // Number of drivers and devices that do not start, and of kinds without any; stderr says why.
  uint32_t failed = 0;
};

// All devices of these kinds: "cpu", "cuda", "vulkan". A kind without a driver or device is named on stderr and
// skipped. Blocks until the drivers answer. The images must outlive the CUDA devices.
FoundDevices StartFoundDevices(const std::vector<std::string>& kinds,
                               const kernels::cuda::Images& images = kernels::cuda::CompiledImages());

// Starts one device: "reference", "cpu", "cpu:TARGET" (kernels/cpu/target.h), "pipe:COMMAND"
// (tests/conformance/piped_device.h), or a name that StartFoundDevices gives, such as "cuda0" and "vulkan1". The error
// says what there is. Blocks as StartFoundDevices.
absl::StatusOr<std::unique_ptr<devices::Device>> StartDevice(const std::string& name);

}  // namespace sortition

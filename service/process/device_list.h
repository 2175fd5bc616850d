// Starts and tests the devices that the configuration names.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "devices/device.h"
#include "devices/self_test/self_test.h"
#include "service/engine.h"
#include "service/log/log.h"
#include "service/process/config.h"

namespace sortition::server {

// Numbers of device memories. Each device has its own memory, numbered by its place in its driver's order.
inline constexpr uint32_t kCudaMemory = devices::kHostMemory + 1;
inline constexpr uint32_t kVulkanMemory = kCudaMemory + 0x10000;

struct StartedDevices {
  std::vector<std::unique_ptr<devices::Device>> devices;
  std::vector<service::MissingDevice> missing;
};

// Records that a device is missing. `name` is an entry of --devices that matches nothing here, or the name of a device
// that did not start; `hardware` is then the driver's name of it.
void Miss(const std::string& name, const std::string& hardware, const absl::Status& why, Log* log,
          StartedDevices* started);

// Starts the devices that `config.devices` names. A CUDA or Vulkan device that is absent, or that its driver cannot
// start, is logged and goes to `missing`. The error names an invalid entry, or says that no device is left.
// `restart_wanted` is called, on any thread, when a driver has lost a device and only a new process can use it again.
absl::StatusOr<StartedDevices> StartDevices(const Config& config, Log* log,
                                            std::function<void()> restart_wanted = nullptr);

// Returns INVALID_ARGUMENT if --route names a device that has not started.
absl::Status CheckRoute(const Config& config, const std::vector<std::unique_ptr<devices::Device>>& devices);

// Runs the self-test of every device of the engine, before the first row. FAILED_PRECONDITION if none passes.
absl::Status SelfTestDevices(const devices::SelfTest& self_test, service::Engine* engine);

}  // namespace sortition::server

// Starts and tests the devices that the configuration names.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "devices/device.h"
#include "devices/self_test/self_test.h"
#include "devices/vulkan/instance.h"
#include "service/engine.h"
#include "service/server/config.h"
#include "service/server/log.h"

namespace sortition::server {

// Returns the Vulkan devices that an entry of --devices names. "vulkan" names all, "vulkan:INDEX" the one at this place
// in the loader's order, "vulkan:TEXT" those whose name contains the text in any case. May be empty.
std::vector<devices::vulkan::Hardware> Matching(const std::string& entry,
                                                const std::vector<devices::vulkan::Hardware>& hardware);

struct StartedDevices {
  std::vector<std::unique_ptr<devices::Device>> devices;
  std::vector<service::MissingDevice> missing;
};

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

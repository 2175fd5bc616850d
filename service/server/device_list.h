// The devices that a configuration asks for.
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

// What an entry of --devices means to the Vulkan devices of a machine: those that "vulkan" names (all), "vulkan:INDEX"
// (the one at that place in the loader's order) or "vulkan:TEXT" (whose name has that part, whatever its case). Empty
// if none is meant.
std::vector<devices::vulkan::Hardware> Matching(const std::string& entry,
                                                const std::vector<devices::vulkan::Hardware>& hardware);

struct StartedDevices {
  std::vector<std::unique_ptr<devices::Device>> devices;
  std::vector<service::MissingDevice> missing;
};

// Starts what `config.devices` names. A CUDA or Vulkan device that is not there, or that its driver cannot start, is
// logged and missing. The error names an entry that means nothing, or says that no device is left. `restart_wanted` is
// called, on any thread, when a driver has lost a device to this process for good.
absl::StatusOr<StartedDevices> StartDevices(const Config& config, Log* log,
                                            std::function<void()> restart_wanted = nullptr);

// INVALID_ARGUMENT if --route names a device that has not started.
absl::Status CheckRoute(const Config& config, const std::vector<std::unique_ptr<devices::Device>>& devices);

// Has every device of the engine prove itself, before the first row. FAILED_PRECONDITION if none does.
absl::Status SelfTestDevices(const devices::SelfTest& self_test, service::Engine* engine);

}  // namespace sortition::server

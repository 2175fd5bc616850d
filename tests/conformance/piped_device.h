// A device that is a program, which answers rows on its standard output: tests/neon/answers.cc, in an emulator.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "devices/device.h"

namespace sortition {

// Runs the command in a shell, until the device is destroyed. Blocks until the program has named itself.
absl::StatusOr<std::unique_ptr<devices::Device>> StartPipedDevice(const std::string& command);

}  // namespace sortition

// The Vulkan drivers that tests run on: two that compute on the CPU, so that every machine has them.
#pragma once

#include <functional>
#include <memory>
#include <ostream>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "devices/vulkan/instance.h"

namespace sortition::testing {

struct Driver {
  std::string name;
  std::string package;                 // that has it, on Debian
  std::vector<std::string> manifests;  // where it may be
};

inline void PrintTo(const Driver& driver, std::ostream* out) { *out << driver.name; }

// "lavapipe" and "swiftshader".
const std::vector<Driver>& Drivers();

// The manifest of this driver on this machine; empty if it is not installed.
std::string ManifestOf(const Driver& driver);

// An instance with this driver alone, with validation where that layer is installed: each complaint fails the test that
// runs. Changes the process's environment, so no other thread may read that meanwhile.
absl::StatusOr<std::shared_ptr<devices::vulkan::Instance>> OpenDriver(
    const Driver& driver, std::function<void(devices::vulkan::Api*)> replace_functions = {});

}  // namespace sortition::testing

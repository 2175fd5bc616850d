// Tells other processes which port was chosen.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"

namespace sortition::server {

// Writes the port in decimal and a newline to `path`, atomically: who finds the file finds all of it.
absl::Status WritePortFile(const std::string& path, uint16_t port);

}  // namespace sortition::server

// The settings from outside: command line before environment before default.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "service/process/config.h"

namespace sortition::server {

// Reads the variables SORTITIOND_<FLAG IN CAPITALS> of `environment` (a null-terminated list of NAME=VALUE) into the
// flags, and then the command line, which overrides them. Other variables that begin with SORTITION_ are clients' and
// are ignored, unless the rest names a setting. Prints and exits for --help and --version. A wrong flag on the command
// line also ends the process, with a text that names it. The error names an unknown variable, a bad value of one, or an
// argument that is not a flag. --version prints `version`. Not thread-safe: flags are process-wide.
absl::StatusOr<Config> ConfigFromFlags(int argc, char** argv, const char* const* environment,
                                       const std::string& version);

}  // namespace sortition::server

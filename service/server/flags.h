// The settings from outside: command line before environment before default.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "service/server/config.h"

namespace sortition::server {

// Reads SORTITION_<FLAG IN CAPITALS> variables of `environment` (NAME=VALUE, null-terminated list) into the flags, then
// the command line over them. Exits, with a text that names the flag, if the command line is wrong, and for --help and
// --version. The error names a variable that is no flag's, a bad value, or an argument that is no flag. `version` is
// what --version prints. Not thread-safe; flags are process-wide.
absl::StatusOr<Config> ConfigFromFlags(int argc, char** argv, const char* const* environment,
                                       const std::string& version);

}  // namespace sortition::server

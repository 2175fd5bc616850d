// Connections to Unix sockets on this machine.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "service/memory/descriptor.h"

namespace sortition::client {

// Whether a target is "unix:PATH".
bool IsUnixTarget(absl::string_view target);

// Connects a socket of `type` to "unix:PATH". Blocks only where the listener's queue is full, and at most for
// `patience`; UNAVAILABLE if it still is.
absl::StatusOr<service::Descriptor> ConnectUnix(absl::string_view target, int type,
                                                absl::Duration patience = absl::Seconds(5));

}  // namespace sortition::client

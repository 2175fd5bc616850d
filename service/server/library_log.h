// Sends what gRPC and protobuf say into the service's log, so that standard error holds JSON lines alone and no client
// can flood it with malformed messages.
#pragma once

#include "service/server/log.h"

namespace sortition::server {

// `log` is not owned and outlives every use of gRPC and protobuf in the process. Call once, before either is used.
void RedirectLibraryLogs(Log* log);

}  // namespace sortition::server

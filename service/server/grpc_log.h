// Sends gRPC's own messages into the service's log, so that standard error holds JSON lines alone.
#pragma once

#include "service/server/log.h"

namespace sortition::server {

// `log` is not owned and outlives every use of gRPC in the process. Call once, before gRPC is used.
void RedirectGrpcLog(Log* log);

}  // namespace sortition::server

// Refusals of a whole call: a gRPC status with typed details.
#pragma once

#include <grpcpp/support/status.h>

#include <string>

#include "service/refusal.h"

namespace sortition::server {

// ErrorInfo.domain of every refusal.
inline constexpr char kErrorDomain[] = "sortition.v1";

// The status of a call that is refused. Its details (the trailer grpc-status-details-bin) are EncodeStatusDetails.
grpc::Status RefusedStatus(const service::Refusal& refusal);

// An encoded google.rpc.Status that holds a google.rpc.ErrorInfo {reason, domain, metadata: field and limit where there
// are any}, and a google.rpc.RetryInfo if the refusal advises when to retry.
std::string EncodeStatusDetails(const service::Refusal& refusal);

}  // namespace sortition::server

// Encodes the refusal of a whole call as a gRPC status with typed details.
#pragma once

#include <grpcpp/support/status.h>

#include <string>

#include "service/refusal.h"

namespace sortition::server {

// ErrorInfo.domain of every refusal.
inline constexpr char kErrorDomain[] = "sortition.v1";

// Returns the status of a refused call. Its details (the trailer grpc-status-details-bin) are EncodeStatusDetails.
grpc::Status RefusedStatus(const service::Refusal& refusal);

// Returns an encoded google.rpc.Status. It holds a google.rpc.ErrorInfo with reason, domain, and the metadata `field`
// and `limit` if there are any, and a google.rpc.RetryInfo if the refusal advises when to retry.
std::string EncodeStatusDetails(const service::Refusal& refusal);

}  // namespace sortition::server

// Errors from the wire, and the client's reaction to them.
#pragma once

#include "sortition/errors.h"
#include "sortition/v1/errors.pb.h"

namespace sortition::client {

RowError FromWire(const v1::Error& error);

// The client's reaction to an error that the service reports for a row or an open.
enum class Remedy {
  kSurface,      // pass the error to the caller
  kReplay,       // open with the whole history, send the same step again
  kReopen,       // open again with a higher epoch, send the same step again
  kRetryLater,   // send the same step again after a back-off, at least the advised one
  kGoElsewhere,  // send the same step again on another stream
};
Remedy RemedyFor(v1::ErrorReason reason);

}  // namespace sortition::client

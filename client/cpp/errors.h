// Why a row, a sequence or a call of the client failed: one plain type for what the service says and what the client
// finds.
#pragma once

#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "sortition/v1/errors.pb.h"

namespace sortition::client {

// The contract's Error as a value. Reasons and their meaning: proto/sortition/v1/errors.proto.
struct RowError {
  absl::StatusCode code = absl::StatusCode::kUnknown;
  v1::ErrorReason reason = v1::ERROR_REASON_UNSPECIFIED;
  std::string field;  // path of the offending field, empty if none is to blame
  std::string limit;  // what would have been accepted, empty if there is none
  std::string message;
  absl::Duration retry_after = absl::ZeroDuration();  // zero = no advice
};

RowError FromWire(const v1::Error& error);

// "HISTORY_REQUIRED open.history (limit): message", without the parts that are empty.
std::string Describe(const RowError& error);

// The same as a status. The error goes along as a payload, so that ErrorOf gives it back.
absl::Status ToStatus(const RowError& error);
std::optional<RowError> ErrorOf(const absl::Status& status);

// What the client does about an error that the service reports for a row or an open.
enum class Remedy {
  kSurface,      // the caller's to handle
  kReplay,       // open with the whole history, send the same step again
  kReopen,       // open again with a higher epoch, send the same step again
  kRetryLater,   // send the same step again after the advice
  kGoElsewhere,  // send the same step again on another stream
};
Remedy RemedyFor(v1::ErrorReason reason);

}  // namespace sortition::client

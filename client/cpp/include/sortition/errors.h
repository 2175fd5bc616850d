// Errors of rows, sequences and calls: one plain type for the service's and the client's.
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
  std::string field;  // path of the offending field; empty if there is none
  std::string limit;  // the accepted range; empty if there is none
  std::string message;
  absl::Duration retry_after = absl::ZeroDuration();  // zero = no advice
};

// Returns "HISTORY_REQUIRED open.history (limit): message", without the parts that are empty.
std::string Describe(const RowError& error);

// Converts an error to a status, with the error as a payload, from which ErrorOf restores it.
absl::Status ToStatus(const RowError& error);
std::optional<RowError> ErrorOf(const absl::Status& status);

}  // namespace sortition::client

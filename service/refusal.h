// A refusal says why a row, a sequence or a message is not served. It is the one error type inside the service; result/
// encodes it for the wire.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "kernels/compact_row.h"

namespace sortition::service {

// Numbers and names equal sortition.v1.ErrorReason's; a test checks this.
enum class Reason : uint8_t {
  kMalformedMessage = 1,
  kUnknownField = 2,
  kUnknownEnumValue = 3,
  kMissingField = 4,
  kOutOfRange = 5,
  kTooMany = 6,
  kNotImplemented = 7,
  kContradiction = 8,
  kSizeMismatch = 9,
  kVocabularyMismatch = 10,
  kDuplicateRow = 11,
  kUnsupportedLawVersion = 12,
  kProtocolViolation = 13,
  kUnknownRegion = 14,
  kUnknownMask = 15,
  kCheckpointRefused = 16,
  kUnauthenticated = 17,
  kPermissionDenied = 18,
  kLogitNan = 20,
  kLogitTooLarge = 21,
  kNoLiveToken = 22,
  kHistoryRequired = 30,
  kStaleStep = 31,
  kSuperseded = 32,
  kStepInFlight = 33,
  kUnknownSequence = 34,
  kStepConflict = 35,
  kRowRequired = 36,
  kOverloaded = 40,
  kDeadlinePassed = 41,
  kStepCancelled = 42,
  kDraining = 43,
  kDeviceFailed = 44,
  kClientLimit = 45,
  kReceiptsNotWritten = 46,
};

inline constexpr Reason kAllReasons[] = {
    Reason::kMalformedMessage,   Reason::kUnknownField,       Reason::kUnknownEnumValue,
    Reason::kMissingField,       Reason::kOutOfRange,         Reason::kTooMany,
    Reason::kNotImplemented,     Reason::kContradiction,      Reason::kSizeMismatch,
    Reason::kVocabularyMismatch, Reason::kDuplicateRow,       Reason::kUnsupportedLawVersion,
    Reason::kProtocolViolation,  Reason::kLogitNan,           Reason::kLogitTooLarge,
    Reason::kNoLiveToken,        Reason::kHistoryRequired,    Reason::kStaleStep,
    Reason::kSuperseded,         Reason::kStepInFlight,       Reason::kUnknownSequence,
    Reason::kStepConflict,       Reason::kOverloaded,         Reason::kDeadlinePassed,
    Reason::kStepCancelled,      Reason::kDraining,           Reason::kDeviceFailed,
    Reason::kUnknownRegion,      Reason::kUnknownMask,        Reason::kCheckpointRefused,
    Reason::kUnauthenticated,    Reason::kPermissionDenied,   Reason::kClientLimit,
    Reason::kRowRequired,        Reason::kReceiptsNotWritten,
};

// Returns the name on the wire, such as "HISTORY_REQUIRED". A static string.
std::string_view ReasonName(Reason reason);

// Returns true if the fault is the server's, as the objective for rows counts it.
constexpr bool IsFailure(Reason reason) {
  return reason == Reason::kOverloaded || reason == Reason::kDeadlinePassed || reason == Reason::kDeviceFailed;
}

// Returns the google.rpc.Code of a reason.
absl::StatusCode ToStatusCode(Reason reason);

// A position whose compact row does not decide its answer.
struct RequiredLogits {
  uint32_t position = 0;
  kernels::RowRequired why = {};
};

struct Refusal {
  Reason reason;
  std::string field;                                  // path from the message; empty if no field is at fault
  std::string limit;                                  // the accepted range; empty if no limit applies
  std::string message;                                // for people; never logits, seeds or tokens' text
  absl::Duration retry_after = absl::ZeroDuration();  // zero = no advice
  std::vector<RequiredLogits> required = {};          // kRowRequired: by position
};

}  // namespace sortition::service

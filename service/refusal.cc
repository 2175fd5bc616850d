// Names and codes of refusals.
#include "service/refusal.h"

#include "kernels/check.h"

namespace sortition::service {

std::string_view ReasonName(Reason reason) {
  switch (reason) {
    case Reason::kMalformedMessage:
      return "MALFORMED_MESSAGE";
    case Reason::kUnknownField:
      return "UNKNOWN_FIELD";
    case Reason::kUnknownEnumValue:
      return "UNKNOWN_ENUM_VALUE";
    case Reason::kMissingField:
      return "MISSING_FIELD";
    case Reason::kOutOfRange:
      return "OUT_OF_RANGE";
    case Reason::kTooMany:
      return "TOO_MANY";
    case Reason::kNotImplemented:
      return "NOT_IMPLEMENTED";
    case Reason::kContradiction:
      return "CONTRADICTION";
    case Reason::kSizeMismatch:
      return "SIZE_MISMATCH";
    case Reason::kVocabularyMismatch:
      return "VOCABULARY_MISMATCH";
    case Reason::kDuplicateRow:
      return "DUPLICATE_ROW";
    case Reason::kUnsupportedLawVersion:
      return "UNSUPPORTED_LAW_VERSION";
    case Reason::kProtocolViolation:
      return "PROTOCOL_VIOLATION";
    case Reason::kUnknownRegion:
      return "UNKNOWN_REGION";
    case Reason::kUnknownMask:
      return "UNKNOWN_MASK";
    case Reason::kCheckpointRefused:
      return "CHECKPOINT_REFUSED";
    case Reason::kUnauthenticated:
      return "UNAUTHENTICATED";
    case Reason::kPermissionDenied:
      return "PERMISSION_DENIED";
    case Reason::kLogitNan:
      return "LOGIT_NAN";
    case Reason::kLogitTooLarge:
      return "LOGIT_TOO_LARGE";
    case Reason::kNoLiveToken:
      return "NO_LIVE_TOKEN";
    case Reason::kHistoryRequired:
      return "HISTORY_REQUIRED";
    case Reason::kStaleStep:
      return "STALE_STEP";
    case Reason::kSuperseded:
      return "SUPERSEDED";
    case Reason::kStepInFlight:
      return "STEP_IN_FLIGHT";
    case Reason::kUnknownSequence:
      return "UNKNOWN_SEQUENCE";
    case Reason::kStepConflict:
      return "STEP_CONFLICT";
    case Reason::kRowRequired:
      return "ROW_REQUIRED";
    case Reason::kOverloaded:
      return "OVERLOADED";
    case Reason::kDeadlinePassed:
      return "DEADLINE_PASSED";
    case Reason::kStepCancelled:
      return "STEP_CANCELLED";
    case Reason::kDraining:
      return "DRAINING";
    case Reason::kDeviceFailed:
      return "DEVICE_FAILED";
    case Reason::kClientLimit:
      return "CLIENT_LIMIT";
    case Reason::kReceiptsNotWritten:
      return "RECEIPTS_NOT_WRITTEN";
  }
  SORTITION_CHECK(!"a known reason");
  return "";
}

absl::StatusCode ToStatusCode(Reason reason) {
  switch (reason) {
    case Reason::kOutOfRange:
      return absl::StatusCode::kOutOfRange;
    case Reason::kNotImplemented:
      return absl::StatusCode::kUnimplemented;
    case Reason::kUnsupportedLawVersion:
    case Reason::kProtocolViolation:
    case Reason::kHistoryRequired:
    case Reason::kStaleStep:
    case Reason::kStepInFlight:
    case Reason::kStepConflict:
    case Reason::kRowRequired:
      return absl::StatusCode::kFailedPrecondition;
    case Reason::kSuperseded:
      return absl::StatusCode::kAborted;
    case Reason::kUnknownSequence:
    case Reason::kUnknownRegion:
    case Reason::kUnknownMask:
      return absl::StatusCode::kNotFound;
    case Reason::kOverloaded:
    case Reason::kClientLimit:
      return absl::StatusCode::kResourceExhausted;
    case Reason::kUnauthenticated:
      return absl::StatusCode::kUnauthenticated;
    case Reason::kPermissionDenied:
      return absl::StatusCode::kPermissionDenied;
    case Reason::kDeadlinePassed:
      return absl::StatusCode::kDeadlineExceeded;
    case Reason::kStepCancelled:
      return absl::StatusCode::kCancelled;
    case Reason::kDraining:
    case Reason::kDeviceFailed:
    case Reason::kReceiptsNotWritten:
      return absl::StatusCode::kUnavailable;
    default:
      return absl::StatusCode::kInvalidArgument;
  }
}

}  // namespace sortition::service

// Converts errors of the wire to values and statuses, and chooses remedies.
#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"
#include "client/cpp/transport/wire_errors.h"

namespace sortition::client {
namespace {

constexpr char kPayloadUrl[] = "type.googleapis.com/sortition.v1.Error";

absl::StatusCode CodeFromWire(int32_t code) {
  // An error always has a code. OK, or a number without a code, is a mistake of the server and must not read as
  // success.
  return code > 0 && code <= static_cast<int32_t>(absl::StatusCode::kUnauthenticated)
             ? static_cast<absl::StatusCode>(code)
             : absl::StatusCode::kUnknown;
}

v1::Error ToWire(const RowError& error) {
  v1::Error wire;
  wire.set_code(static_cast<int32_t>(error.code));
  wire.set_reason(error.reason);
  wire.set_field(error.field);
  wire.set_limit(error.limit);
  wire.set_message(error.message);
  if (error.retry_after > absl::ZeroDuration()) {
    const int64_t nanoseconds = absl::ToInt64Nanoseconds(error.retry_after);
    wire.mutable_retry_after()->set_seconds(nanoseconds / 1'000'000'000);
    wire.mutable_retry_after()->set_nanos(static_cast<int32_t>(nanoseconds % 1'000'000'000));
  }
  return wire;
}

}  // namespace

RowError FromWire(const v1::Error& error) {
  return RowError{CodeFromWire(error.code()),
                  error.reason(),
                  error.field(),
                  error.limit(),
                  error.message(),
                  absl::Seconds(error.retry_after().seconds()) + absl::Nanoseconds(error.retry_after().nanos())};
}

std::string Describe(const RowError& error) {
  std::string text = v1::ErrorReason_IsValid(error.reason) ? v1::ErrorReason_Name(error.reason)
                                                           : absl::StrCat("reason ", static_cast<int>(error.reason));
  if (!error.field.empty()) absl::StrAppend(&text, " ", error.field);
  if (!error.limit.empty()) absl::StrAppend(&text, " (", error.limit, ")");
  if (!error.message.empty()) absl::StrAppend(&text, ": ", error.message);
  return text;
}

absl::Status ToStatus(const RowError& error) {
  absl::Status status(error.code, Describe(error));
  // Takes a view, for GCC and Clang 19 mangle the constructor that takes a string differently.
  status.SetPayload(kPayloadUrl, absl::Cord(absl::string_view(ToWire(error).SerializeAsString())));
  return status;
}

std::optional<RowError> ErrorOf(const absl::Status& status) {
  const auto payload = status.GetPayload(kPayloadUrl);
  v1::Error wire;
  if (!payload || !wire.ParseFromString(std::string(*payload))) return std::nullopt;
  return FromWire(wire);
}

Remedy RemedyFor(v1::ErrorReason reason) {
  switch (reason) {
    case v1::HISTORY_REQUIRED:
    // The server has answered this step before with its rewrites. A replay puts the rewrites into the history and makes
    // the server forget that answer.
    case v1::STEP_CONFLICT:
    // The server has answered a later step of another process of this worker session, whose step ids are unknown here.
    case v1::STALE_STEP:
      return Remedy::kReplay;
    // The server may still work on a step given up at its deadline. A higher epoch makes it release the sequence.
    case v1::STEP_IN_FLIGHT:
    case v1::UNKNOWN_SEQUENCE:
      return Remedy::kReopen;
    case v1::OVERLOADED:
    case v1::CLIENT_LIMIT:
    case v1::RECEIPTS_NOT_WRITTEN:
      return Remedy::kRetryLater;
    case v1::DRAINING:
    case v1::DEVICE_FAILED:
    // The connection that the regions belonged to has ended; a new stream has a new one.
    case v1::UNKNOWN_REGION:
      return Remedy::kGoElsewhere;
    default:
      return Remedy::kSurface;
  }
}

}  // namespace sortition::client

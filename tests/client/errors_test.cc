// Conversion of errors from the wire to a status and back, and the client's remedy for each.
#include <string>

#include "client/cpp/transport/wire_errors.h"
#include "gtest/gtest.h"

namespace sortition::client::errors_test {
namespace {

v1::Error WireError() {
  v1::Error wire;
  wire.set_code(static_cast<int>(absl::StatusCode::kResourceExhausted));
  wire.set_reason(v1::OVERLOADED);
  wire.set_field("step");
  wire.set_limit("<= 16384 rows");
  wire.set_message("the queue is full");
  wire.mutable_retry_after()->set_seconds(2);
  wire.mutable_retry_after()->set_nanos(5);
  return wire;
}

TEST(ErrorsTest, StatusCarriesTheWholeError) {
  const RowError error = FromWire(WireError());
  EXPECT_EQ(error.retry_after, absl::Seconds(2) + absl::Nanoseconds(5));
  const absl::Status status = ToStatus(error);
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(std::string(status.message()), "OVERLOADED step (<= 16384 rows): the queue is full");
  const auto back = ErrorOf(status);
  ASSERT_TRUE(back.has_value());
  EXPECT_EQ(back->code, error.code);
  EXPECT_EQ(back->reason, error.reason);
  EXPECT_EQ(back->field, error.field);
  EXPECT_EQ(back->limit, error.limit);
  EXPECT_EQ(back->message, error.message);
  EXPECT_EQ(back->retry_after, error.retry_after);
}

TEST(ErrorsTest, OtherStatusesCarryNoError) { EXPECT_FALSE(ErrorOf(absl::UnavailableError("gone")).has_value()); }

TEST(ErrorsTest, ErrorNeverReadsAsSuccess) {
  for (const int code : {0, -1, 17, 1000}) {
    v1::Error wire = WireError();
    wire.set_code(code);
    EXPECT_EQ(FromWire(wire).code, absl::StatusCode::kUnknown) << code;
    EXPECT_FALSE(ToStatus(FromWire(wire)).ok());
  }
}

TEST(ErrorsTest, UnknownReasonIsShownByNumber) {
  v1::Error wire = WireError();
  wire.set_reason(static_cast<v1::ErrorReason>(999));
  EXPECT_EQ(Describe(FromWire(wire)), "reason 999 step (<= 16384 rows): the queue is full");
  EXPECT_EQ(RemedyFor(static_cast<v1::ErrorReason>(999)), Remedy::kSurface);
}

TEST(ErrorsTest, OnlyRetryableErrorsAreRetried) {
  int cured = 0;
  for (int reason = v1::ErrorReason_MIN; reason <= v1::ErrorReason_MAX; ++reason) {
    if (!v1::ErrorReason_IsValid(reason)) continue;
    if (RemedyFor(static_cast<v1::ErrorReason>(reason)) != Remedy::kSurface) ++cured;
  }
  EXPECT_EQ(cured, 11);
  for (const v1::ErrorReason reason : {v1::SUPERSEDED, v1::LOGIT_NAN, v1::DEADLINE_PASSED, v1::OUT_OF_RANGE}) {
    EXPECT_EQ(RemedyFor(reason), Remedy::kSurface) << v1::ErrorReason_Name(reason);
  }
}

}  // namespace
}  // namespace sortition::client::errors_test

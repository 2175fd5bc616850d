// Reasons against the contract: the same names, the same numbers, the codes of google.rpc.
#include "service/refusal.h"

#include <gtest/gtest.h>

#include <map>
#include <set>

#include "sortition/v1/errors.pb.h"

namespace sortition::service::refusal_test {
namespace {

TEST(Refusal, ReasonsEqualContract) {
  const google::protobuf::EnumDescriptor& contract = *v1::ErrorReason_descriptor();
  std::set<int> listed;
  for (const Reason reason : kAllReasons) {
    const auto* value = contract.FindValueByNumber(static_cast<int>(reason));
    ASSERT_NE(value, nullptr) << static_cast<int>(reason);
    EXPECT_EQ(value->name(), ReasonName(reason));
    EXPECT_TRUE(listed.insert(value->number()).second) << value->name() << " is listed twice";
  }
  for (int i = 0; i < contract.value_count(); ++i) {
    const auto* value = contract.value(i);
    if (value->number() == v1::ERROR_REASON_UNSPECIFIED) continue;
    EXPECT_EQ(listed.count(value->number()), 1u) << value->name() << " is not listed";
  }
}

// Numbers of google.rpc.Code, as the comments of errors.proto promise them; a new reason must be added here.
TEST(Refusal, CodesEqualContract) {
  const std::map<int, std::set<Reason>> expected = {
      {3,  // INVALID_ARGUMENT

       {Reason::kMalformedMessage, Reason::kUnknownField, Reason::kUnknownEnumValue, Reason::kMissingField,
        Reason::kTooMany, Reason::kContradiction, Reason::kSizeMismatch, Reason::kVocabularyMismatch,
        Reason::kDuplicateRow, Reason::kLogitNan, Reason::kLogitTooLarge, Reason::kNoLiveToken,
        Reason::kCheckpointRefused}},
      {11,  // OUT_OF_RANGE
       {Reason::kOutOfRange}},
      {12,  // UNIMPLEMENTED
       {Reason::kNotImplemented}},
      {9,  // FAILED_PRECONDITION

       {Reason::kUnsupportedLawVersion, Reason::kProtocolViolation, Reason::kHistoryRequired, Reason::kStaleStep,
        Reason::kStepInFlight, Reason::kStepConflict, Reason::kRowRequired}},
      {10,  // ABORTED
       {Reason::kSuperseded}},
      {5,  // NOT_FOUND
       {Reason::kUnknownSequence, Reason::kUnknownRegion, Reason::kUnknownMask}},
      {8,  // RESOURCE_EXHAUSTED
       {Reason::kOverloaded, Reason::kClientLimit}},
      {4,  // DEADLINE_EXCEEDED
       {Reason::kDeadlinePassed}},
      {1,  // CANCELLED
       {Reason::kStepCancelled}},
      {14,  // UNAVAILABLE
       {Reason::kDraining, Reason::kDeviceFailed, Reason::kReceiptsNotWritten}},
      {16,  // UNAUTHENTICATED
       {Reason::kUnauthenticated}},
      {7,  // PERMISSION_DENIED
       {Reason::kPermissionDenied}},
  };
  size_t total = 0;
  for (const auto& [code, reasons] : expected) {
    total += reasons.size();
    for (const Reason reason : reasons) EXPECT_EQ(static_cast<int>(ToStatusCode(reason)), code) << ReasonName(reason);
  }
  EXPECT_EQ(total, std::size(kAllReasons));
}

}  // namespace
}  // namespace sortition::service::refusal_test

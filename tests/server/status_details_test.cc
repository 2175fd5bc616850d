// The hand-written encoding of status details, read by an independent decoder.
#include "service/calls/status_details.h"

#include <gtest/gtest.h>

#include <map>
#include <string>

#include "tests/server/status_details_decoder.h"

namespace sortition::server::status_details_test {
namespace {

using service::Reason;

TEST(StatusDetailsTest, HoldsReasonDomainFieldLimitAndRetry) {
  const DecodedDetails details = DecodeStatusDetails(EncodeStatusDetails(
      {Reason::kOverloaded, "stream", "max_streams 4", "4 streams are open", absl::Milliseconds(2500)}));
  ASSERT_TRUE(details.valid);
  EXPECT_EQ(details.code, 8);
  EXPECT_EQ(details.message, "4 streams are open");
  EXPECT_EQ(details.reason, "OVERLOADED");
  EXPECT_EQ(details.domain, "sortition.v1");
  EXPECT_EQ(details.metadata, (std::map<std::string, std::string>{{"field", "stream"}, {"limit", "max_streams 4"}}));
  EXPECT_DOUBLE_EQ(details.retry_seconds, 2.5);
}

TEST(StatusDetailsTest, OmitsAbsentFields) {
  const DecodedDetails details = DecodeStatusDetails(EncodeStatusDetails({Reason::kDraining, "", "", "", {}}));
  ASSERT_TRUE(details.valid);
  EXPECT_EQ(details.code, 14);
  EXPECT_EQ(details.message, "");
  EXPECT_TRUE(details.metadata.empty());
  EXPECT_EQ(details.retry_seconds, 0);
}

// Lengths of 128 and more take two bytes on the wire.
TEST(StatusDetailsTest, EncodesLongTexts) {
  const std::string text(1000, 'x');
  const DecodedDetails details = DecodeStatusDetails(EncodeStatusDetails({Reason::kTooMany, text, text, text, {}}));
  ASSERT_TRUE(details.valid);
  EXPECT_EQ(details.message, text);
  EXPECT_EQ(details.metadata.at("field"), text);
  EXPECT_EQ(details.metadata.at("limit"), text);
}

TEST(StatusDetailsTest, EveryReasonHasCodeInStatusAndDetails) {
  for (const Reason reason : service::kAllReasons) {
    const grpc::Status status = RefusedStatus({reason, "", "", "why", {}});
    const DecodedDetails details = DecodeStatusDetails(status.error_details());
    ASSERT_TRUE(details.valid);
    EXPECT_FALSE(status.ok());
    EXPECT_EQ(status.error_code(), details.code);
    EXPECT_EQ(details.reason, std::string(service::ReasonName(reason)));
  }
}

TEST(StatusDetailsTest, DecoderNoticesDamage) {
  EXPECT_FALSE(DecodeStatusDetails("").valid);
  EXPECT_FALSE(DecodeStatusDetails(EncodeStatusDetails({Reason::kDraining, "", "", "m", {}}).substr(1)).valid);
}

}  // namespace
}  // namespace sortition::server::status_details_test

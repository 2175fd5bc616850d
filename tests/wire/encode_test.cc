// Refusals and answers as messages.
#include "service/wire/encode.h"

#include <gtest/gtest.h>

#include <bit>

#include "kernels/law/logprob.h"
#include "service/text/row.h"

namespace sortition::service::encode_test {
namespace {

TEST(Encode, ErrorCarriesEverything) {
  const Refusal refusal{Reason::kOverloaded, "step", "limit", "text", absl::Milliseconds(2500)};
  v1::Error error;
  EncodeError(refusal, &error);
  EXPECT_EQ(error.code(), 8);
  EXPECT_EQ(error.reason(), v1::OVERLOADED);
  EXPECT_EQ(error.field(), "step");
  EXPECT_EQ(error.limit(), "limit");
  EXPECT_EQ(error.message(), "text");
  EXPECT_EQ(error.retry_after().seconds(), 2);
  EXPECT_EQ(error.retry_after().nanos(), 500'000'000);
}

TEST(Encode, NoAdviceMeansNoRetryField) {
  v1::Error error;
  EncodeError(Refusal{Reason::kStaleStep, "", "", ""}, &error);
  EXPECT_FALSE(error.has_retry_after());
}

kernels::RowOutput SomeAnswer() {
  kernels::RowOutput answer;
  answer.token = 17;
  answer.raw.max_bits = std::bit_cast<uint32_t>(3.5f);
  answer.raw.weight_sum = uint64_t{3} << 44;
  answer.raw.chosen = {17, std::bit_cast<uint32_t>(1.25f)};
  answer.raw.rank = 4;
  answer.raw.top = {{9, std::bit_cast<uint32_t>(3.5f)}, {2, std::bit_cast<uint32_t>(3.0f)}};
  answer.processed = answer.raw;
  answer.processed.rank = 3;
  answer.processed.top.pop_back();
  return answer;
}

TEST(Encode, DrawWithoutLogprobs) {
  v1::DrawResult result;
  EncodeDraw(SomeAnswer(), SequenceSpec(), kNoPhase, std::nullopt, &result);
  v1::DrawResult expected;
  expected.set_token(17);
  EXPECT_EQ(result.SerializeAsString(), expected.SerializeAsString());
  EncodeDraw(SomeAnswer(), SequenceSpec(), kNoPhase, 0, &result);
  EXPECT_TRUE(result.has_history_hash()) << "a hash of 0 is a hash";
}

TEST(Encode, LogprobsAtTheirOwnTemperature) {
  SequenceSpec spec;
  spec.parameters.raw_logprob = spec.parameters.processed_logprob = true;
  spec.history.phases.resize(1);
  spec.history.phases[0].options.parameters = spec.parameters;
  spec.history.phases[0].options.parameters.temperature = 0.5;
  const kernels::RowOutput answer = SomeAnswer();
  v1::DrawResult result;
  EncodeDraw(answer, spec, /*phase=*/1, 99, &result);
  EXPECT_EQ(result.phase(), 1u);
  EXPECT_EQ(result.history_hash(), 99u);
  EXPECT_EQ(result.raw().rank(), 4u);
  EXPECT_EQ(result.raw().logprob(), law::Logprob(answer.raw, answer.raw.chosen.bits, 1));
  ASSERT_EQ(result.raw().top_tokens_size(), 2);
  ASSERT_EQ(result.raw().top_logprobs_size(), 2);
  EXPECT_EQ(result.raw().top_tokens(1), 2u);
  EXPECT_EQ(result.raw().top_logprobs(1), law::Logprob(answer.raw, answer.raw.top[1].bits, 1));
  EXPECT_EQ(result.processed().rank(), 3u);
  EXPECT_EQ(result.processed().logprob(), law::Logprob(answer.processed, answer.processed.chosen.bits, 0.5));
  EXPECT_NE(result.processed().logprob(), result.raw().logprob());
  EXPECT_EQ(result.processed().top_tokens_size(), 1);
}

TEST(Encode, RowErrorsNameTheirRowAndToken) {
  kernels::RowOutput answer;
  answer.error_token = 12;
  answer.error = kernels::RowFault::kNaN;
  EXPECT_EQ(ToRefusal(answer, 3).reason, Reason::kLogitNan);
  EXPECT_EQ(ToRefusal(answer, 3).field, "step.rows[3]");
  EXPECT_NE(ToRefusal(answer, 3).message.find("12"), std::string::npos);
  answer.error = kernels::RowFault::kLogitTooLarge;
  EXPECT_EQ(ToRefusal(answer, 3).reason, Reason::kLogitTooLarge);
  answer.error = kernels::RowFault::kNoLiveToken;
  EXPECT_EQ(ToRefusal(answer, 3).reason, Reason::kNoLiveToken);
}

TEST(Encode, RefusalsCarryTheirMessagesNames) {
  const Refusal refusal{Reason::kNotImplemented, "f", "", "m"};
  v1::StreamRequest message;
  message.mutable_open()->set_request_id("a");
  message.mutable_open()->set_epoch(5);
  EXPECT_EQ(EncodeRefused(message, 9, refusal).opened().request_id(), "a");
  EXPECT_EQ(EncodeRefused(message, 9, refusal).opened().epoch(), 5u);
  EXPECT_EQ(EncodeRefused(message, 9, refusal).opened().error().reason(), v1::NOT_IMPLEMENTED);
  message.mutable_fork()->mutable_child()->set_request_id("b");
  EXPECT_EQ(EncodeRefused(message, 9, refusal).forked().request_id(), "b");
  EXPECT_TRUE(EncodeRefused(message, 9, refusal).forked().has_error());
  message.mutable_upload_mask()->set_mask_id(8);
  EXPECT_EQ(EncodeRefused(message, 9, refusal).mask_uploaded().mask_id(), 8u);
  EXPECT_TRUE(EncodeRefused(message, 9, refusal).mask_uploaded().has_error());
}

TEST(Encode, UnnamedMessageIsRefusedByIndex) {
  const Refusal refusal{Reason::kMalformedMessage, "", "", ""};
  v1::StreamRequest message;
  EXPECT_EQ(EncodeRefused(message, 9, refusal).rejected().message_index(), 9u);
  message.mutable_hello();
  EXPECT_TRUE(EncodeRefused(message, 9, refusal).has_rejected());
  message.mutable_open();
  EXPECT_TRUE(EncodeRefused(message, 9, refusal).has_rejected()) << "no name";
}

TEST(Encode, LongNamesAreNotEchoed) {
  v1::StreamRequest message;
  message.mutable_open()->set_request_id(std::string(1 << 20, 'x'));
  EXPECT_LT(EncodeRefused(message, 9, Refusal{Reason::kTooMany, "f", "l", "m"}).ByteSizeLong(), 100u);
}

}  // namespace
}  // namespace sortition::service::encode_test

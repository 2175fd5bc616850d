// Messages that would grow out of all proportion when parsed.
#include "service/request/part_count.h"

#include <gtest/gtest.h>

#include <functional>
#include <string>

#include "service/limits.h"
#include "service/request/frame.h"
#include "sortition/v1/sampling.pb.h"
#include "tests/support/messages.h"

namespace sortition::service {
namespace {

uint32_t PartsOf(const std::string& encoded) {
  uint32_t parts = 0;
  while (!HasAtMostParts(encoded, *v1::StreamRequest::descriptor(), parts)) ++parts;
  return parts;
}

std::string Encoded(const std::function<void(v1::StreamRequest*)>& fill) {
  v1::StreamRequest message;
  fill(&message);
  return message.SerializeAsString();
}

// A length-delimited field.
std::string Field(uint32_t number, const std::string& content) {
  std::string bytes(1, static_cast<char>(number << 3 | 2));
  size_t size = content.size();
  for (; size >= 0x80; size >>= 7) bytes.push_back(static_cast<char>(size | 0x80));
  bytes.push_back(static_cast<char>(size));
  return bytes + content;
}

TEST(PartCount, MessagesAndStringsAtAnyDepth) {
  EXPECT_EQ(PartsOf(""), 0u);
  EXPECT_EQ(PartsOf(Encoded([](auto* m) { m->mutable_step(); })), 1u);
  EXPECT_EQ(PartsOf(Encoded([](auto* m) { m->mutable_hello()->set_worker_session("w"); })), 2u);
  EXPECT_EQ(PartsOf(Encoded([](auto* m) {
              for (int i = 0; i < 10; ++i) m->mutable_step()->add_rows()->mutable_mask()->mutable_allowed_tokens();
            })),
            1u + 3 * 10);
  EXPECT_EQ(PartsOf(Encoded([](auto* m) {
              auto* samplers = m->mutable_open()->mutable_parameters()->mutable_chain()->mutable_explicit_();
              for (int i = 0; i < 10; ++i) samplers->add_samplers("");
            })),
            4u + 10);
}

TEST(PartCount, NumbersAreFree) {
  v1::StreamRequest message;
  v1::History& history = *message.mutable_open()->mutable_history();
  for (uint32_t i = 0; i < 1000; ++i) history.add_tokens(i);
  message.mutable_open()->set_seed(1);
  message.mutable_open()->set_epoch(1);
  EXPECT_EQ(PartsOf(message.SerializeAsString()), 2u);
  // The same list unpacked: one field for each number.
  std::string unpacked;
  for (int i = 0; i < 100; ++i) unpacked += "\x08\x05";
  EXPECT_EQ(PartsOf(Field(2, Field(10, unpacked))), 2u);
}

TEST(PartCount, UnknownFieldsCount) {
  EXPECT_EQ(PartsOf(Field(14, "") + Field(14, "")), 2u);
  EXPECT_EQ(PartsOf(Field(3, std::string("\x68\x01\x68\x01", 4))), 3u) << "field 13 of Step";
  EXPECT_EQ(PartsOf(Field(3, Field(3, std::string("\x20\x01\x20\x01", 4)))), 4u) << "history_hash as a varint";
}

TEST(PartCount, DamagedBytesEndTheCount) {
  const std::string step = Encoded([](auto* m) { m->mutable_step()->add_rows()->set_request_id("abc"); });
  EXPECT_EQ(PartsOf(step), 3u);
  for (size_t length = 0; length < step.size(); ++length) EXPECT_LE(PartsOf(step.substr(0, length)), 3u);
  for (const char* bytes : {"\xff", "\x1c", "\x1a\xff\xff\xff\xff\x7f", "\x0b\x0b\x0b"}) EXPECT_LE(PartsOf(bytes), 2u);
}

// Sixteen megabytes of empty rows would take a gigabyte and a second to parse.
TEST(PartCount, FrameOfEmptyRowsIsRefused) {
  const auto rows = [](uint32_t count) {
    std::string body;
    for (uint32_t i = 0; i < count; ++i) body += Field(3, "");
    return testing::Deliver(Field(3, body));
  };
  const testing::Delivery most = rows(kMaxMessageParts - 1);
  EXPECT_TRUE(std::holds_alternative<Frame>(DecodeFrame(most.segments, most.bytes)));
  const testing::Delivery more = rows(kMaxMessageParts);
  const auto decoded = DecodeFrame(more.segments, more.bytes);
  ASSERT_TRUE(std::holds_alternative<Refusal>(decoded));
  EXPECT_EQ(std::get<Refusal>(decoded).reason, Reason::kTooMany);
  EXPECT_EQ(std::get<Refusal>(decoded).field, "message");
}

// The largest open and the largest step fit the limits.
TEST(PartCount, LimitsFit) {
  constexpr uint32_t kPartsOfARow = 6;  // itself, request_id, task, mask, its list, checkpoint
  EXPECT_LE(kMostStepRows * kPartsOfARow + 100, kMaxMessageParts);
  EXPECT_LE(kMostListedTokens + 100, kMaxMessageParts);
  EXPECT_LE(Limits().max_step_rows, kMostStepRows);
  EXPECT_LE(Limits().max_listed_tokens, kMostListedTokens);
}

}  // namespace
}  // namespace sortition::service

// Encoded messages: small parts by protobuf, bulk parts by reference to the caller's memory.
#include "client/cpp/message.h"

#include <memory>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "service/wire/frame.h"

namespace sortition::client::message_test {
namespace {

constexpr uint32_t kVocabulary = 40;

class MessageTest : public ::testing::Test {
 protected:
  MessageTest() {
    batch.dtype = v1::DTYPE_F16;
    batch.vocabulary_size = kVocabulary;
    batch.row_bytes = 2 * kVocabulary;
    for (uint32_t i = 0; i < 3; ++i) {
      SequenceOptions options;
      options.request_id = "row " + std::to_string(i);
      options.start_position = 10 + i;
      PendingRow& row = batch.rows.emplace_back();
      row.record = std::make_shared<SequenceRecord>(options);
      absl::MutexLock lock(&row.record->mutex);
      row.record->history.KeepNothing();
      row.row.logits = logits + i * batch.row_bytes;
      row.step_id = 100 + i;
    }
  }

  // Decodes it as a server does.
  static service::Frame Decode(const OutgoingMessage& message) {
    std::vector<devices::ByteSegment> segments;
    for (const Segment& segment : message.segments) {
      segments.push_back({reinterpret_cast<const std::byte*>(segment.owned.data()), segment.owned.size()});
      segments.push_back({segment.borrowed.data(), segment.borrowed.size()});
    }
    auto frame = service::DecodeFrame(segments, nullptr);
    EXPECT_TRUE(std::holds_alternative<service::Frame>(frame));
    return std::get<service::Frame>(std::move(frame));
  }

  std::byte logits[3 * 2 * kVocabulary] = {};
  PendingBatch batch;
};

TEST_F(MessageTest, MessageEqualsProtobufsEncoding) {
  const uint32_t rows[] = {0, 1, 2};
  for (size_t i = 0; i < sizeof(logits); ++i) logits[i] = static_cast<std::byte>(i);
  const OutgoingMessage message = EncodeStep(7, batch, rows, absl::Milliseconds(1500), nullptr);
  std::string bytes;
  for (const Segment& segment : message.segments) {
    bytes += segment.owned;
    bytes.append(reinterpret_cast<const char*>(segment.borrowed.data()), segment.borrowed.size());
  }
  v1::StreamRequest request;
  ASSERT_TRUE(request.ParseFromString(bytes));
  EXPECT_EQ(request.SerializeAsString(), bytes);
  ASSERT_EQ(request.payloads_size(), 1);
  EXPECT_EQ(request.payloads(0), std::string(reinterpret_cast<const char*>(logits), sizeof(logits)));
  EXPECT_EQ(request.step().batch_id(), 7);
  EXPECT_EQ(request.step().timeout().seconds(), 1);
  EXPECT_EQ(request.step().timeout().nanos(), 500'000'000);
  ASSERT_EQ(request.step().rows_size(), 3);
  EXPECT_EQ(request.step().rows(2).request_id(), "row 2");
  EXPECT_EQ(request.step().rows(2).step_id(), 102);
  EXPECT_EQ(request.step().rows(2).position(), 12);
}

TEST_F(MessageTest, AdjacentRowsAreOneRunWithoutCopy) {
  const uint32_t rows[] = {0, 2, 1};  // 0 and 2 are not adjacent, nor are 2 and 1
  const service::Frame frame = Decode(EncodeStep(7, batch, rows, absl::Seconds(1), nullptr));
  ASSERT_EQ(frame.payloads.size(), 1);
  ASSERT_EQ(frame.payloads[0].segments.size(), 3);
  EXPECT_EQ(frame.payloads[0].segments[0].data, logits);
  EXPECT_EQ(frame.payloads[0].segments[1].data, logits + 2 * batch.row_bytes);
  EXPECT_EQ(frame.payloads[0].segments[2].data, logits + batch.row_bytes);

  const uint32_t in_order[] = {0, 1, 2};
  const service::Frame one_run = Decode(EncodeStep(7, batch, in_order, absl::Seconds(1), nullptr));
  ASSERT_EQ(one_run.payloads[0].segments.size(), 1);
  EXPECT_EQ(one_run.payloads[0].size, sizeof(logits));
}

TEST_F(MessageTest, MasksAreASecondPayload) {
  const uint32_t mask[2] = {0xffff, 1};
  batch.rows[1].row.allowed_bits = mask;
  const uint32_t rows[] = {0, 1};
  const service::Frame frame = Decode(EncodeStep(7, batch, rows, absl::Seconds(1), nullptr));
  ASSERT_EQ(frame.payloads.size(), 2);
  EXPECT_EQ(frame.payloads[1].segments[0].data, reinterpret_cast<const std::byte*>(mask));
  EXPECT_EQ(frame.payloads[1].size, sizeof(mask));
  const v1::Step& step = frame.message.step();
  EXPECT_EQ(step.masks().rows(), 1);
  EXPECT_EQ(step.masks().source().inline_().payload(), 1);
  EXPECT_FALSE(step.rows(0).has_mask());
  EXPECT_EQ(step.rows(1).mask().mask_row(), 0);
}

// The contract has no mask for each scored token.
TEST_F(MessageTest, ScoredTokensShareOneMask) {
  const uint32_t mask[2] = {0xffff, 1};
  const uint32_t scored[] = {3, 4};
  batch.rows[0].row.allowed_bits = mask;
  batch.rows[0].row.scored = scored;
  const uint32_t rows[] = {0};
  const service::Frame frame = Decode(EncodeStep(7, batch, rows, absl::Seconds(1), nullptr));
  ASSERT_EQ(frame.payloads.size(), 2);
  EXPECT_EQ(frame.payloads[0].size, 2 * batch.row_bytes);
  EXPECT_EQ(frame.payloads[1].size, sizeof(mask));
  EXPECT_EQ(frame.message.step().masks().rows(), 1);
  EXPECT_EQ(frame.message.step().rows(0).mask().mask_row(), 0);
}

TEST_F(MessageTest, TimeoutRoundsUpInfinityIsAbsent) {
  const uint32_t rows[] = {0};
  EXPECT_EQ(Decode(EncodeStep(1, batch, rows, absl::Nanoseconds(0.25), nullptr)).message.step().timeout().nanos(), 1);
  EXPECT_FALSE(Decode(EncodeStep(1, batch, rows, absl::InfiniteDuration(), nullptr)).message.step().has_timeout());
}

TEST_F(MessageTest, HoldLivesAsLongAsMessage) {
  const uint32_t rows[] = {0};
  auto hold = std::make_shared<int>(0);
  const std::weak_ptr<int> watch = hold;
  {
    const OutgoingMessage message = EncodeStep(1, batch, rows, absl::Seconds(1), std::move(hold));
    EXPECT_FALSE(watch.expired());
  }
  EXPECT_TRUE(watch.expired());
}

}  // namespace
}  // namespace sortition::client::message_test

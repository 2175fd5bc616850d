// Batches, rows and histories that are too long for one message travel in several.
#include <set>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sortition/in_process.h"
#include "tests/client/state_harness.h"

namespace sortition::testing::split_test {
namespace {

class SplitTest : public ::testing::Test {
 protected:
  SplitTest() { harness.Welcome(harness.stream(0)); }

  static client::ClientOptions Split() {
    client::ClientOptions options = HarnessOptions();
    options.limits.message_bytes = 3 * sizeof(float) * StateHarness::kVocabulary + 5;  // a little more than three rows
    options.limits.history_piece_tokens = 4;
    return options;
  }

  StateHarness harness{Split()};
};

TEST_F(SplitTest, LargeBatchIsSplitAtRowsWithoutCopy) {
  std::vector<std::shared_ptr<client::SequenceRecord>> records;
  for (int i = 0; i < 8; ++i)
    records.push_back(harness.OpenOn(harness.stream(0), std::string(1, static_cast<char>('a' + i)), false));
  const auto results = harness.Submit(records);
  std::vector<v1::Step> steps;
  size_t row = 0;
  for (const size_t rows : {3u, 3u, 2u}) {
    const SentMessage message = harness.Take(harness.stream(0), v1::StreamRequest::kStep);
    ASSERT_EQ(message.payloads.size(), 1);
    ASSERT_EQ(message.payloads[0].segments.size(), 1) << "rows that touch travel as one run";
    EXPECT_EQ(message.payloads[0].segments[0].data,
              reinterpret_cast<const std::byte*>(harness.logits + row * StateHarness::kVocabulary));
    EXPECT_EQ(message.payloads[0].size, rows * sizeof(float) * StateHarness::kVocabulary);
    ASSERT_EQ(message.message.step().rows_size(), static_cast<int>(rows));
    steps.push_back(message.message.step());
    row += rows;
  }
  EXPECT_TRUE(harness.stream(0).sent.empty());
  // Results are delivered in the batch's order, also if they arrive in another one.
  for (int s : {2, 0, 1}) {
    for (int i = steps[static_cast<size_t>(s)].rows_size() - 1; i >= 0; --i) {
      harness.AnswerRow(harness.stream(0), steps[static_cast<size_t>(s)], i, static_cast<uint32_t>(3 * s + i) % 8);
    }
  }
  ASSERT_EQ(results->times, 1);
  for (size_t i = 0; i < 8; ++i) EXPECT_EQ(DrawOfRow(results->rows[i])->token(), i);
}

// Splitting has no advantage for rows that are only named.
TEST(SplitInProcessTest, LargeBatchStaysWhole) {
  client::ClientOptions options = HarnessOptions();
  options.in_process = client::InProcessEngine();
  options.limits.message_bytes = 3 * sizeof(float) * StateHarness::kVocabulary;
  StateHarness harness(options);
  harness.End(harness.stream(0));
  harness.Welcome(harness.stream(1));
  ASSERT_TRUE(harness.state.links().in_process());
  std::vector<std::shared_ptr<client::SequenceRecord>> records;
  for (const char* id : {"a", "b", "c", "d", "e"}) records.push_back(harness.OpenOn(harness.stream(1), id, false));
  const auto results = harness.Submit(records);
  const v1::Step step = harness.TakeStep(harness.stream(1));
  ASSERT_EQ(step.rows_size(), 5);
  EXPECT_TRUE(harness.stream(1).sent.empty());
  for (int i = 0; i < 5; ++i) harness.AnswerRow(harness.stream(1), step, i, 3);
  EXPECT_EQ(results->times, 1);
}

// A message's other parts count too, besides the rows' bytes. A row that is too large by itself fails alone.
TEST(SplitByTheServersLimitTest, RowsAreSplitByServersLimit) {
  constexpr uint64_t kMost = 180;
  StateHarness harness(HarnessOptions());
  harness.Welcome(harness.stream(0), kMost);
  std::vector<std::shared_ptr<client::SequenceRecord>> records;
  for (const char* id : {"a", "b", "c", "d", "e", "f", "g"})
    records.push_back(harness.OpenOn(harness.stream(0), id, false));
  records.push_back(harness.OpenOn(harness.stream(0), std::string(128, 'l'), false));
  const auto results = harness.Submit(records);
  std::set<std::string> ids;
  while (!harness.stream(0).sent.empty()) {
    const SentMessage message = harness.Take(harness.stream(0), v1::StreamRequest::kStep);
    EXPECT_LE(message.bytes, kMost);
    for (int i = 0; i < message.message.step().rows_size(); ++i) {
      ids.insert(message.message.step().rows(i).request_id());
      harness.AnswerRow(harness.stream(0), message.message.step(), i, 3);
    }
  }
  EXPECT_EQ(ids.size(), 7);
  ASSERT_EQ(results->times, 1);
  for (size_t i = 0; i < 7; ++i) EXPECT_NE(DrawOfRow(results->rows[i]), nullptr);
  const client::RowError* const error = ErrorOfRow(results->rows[7]);
  ASSERT_NE(error, nullptr);
  EXPECT_EQ(error->reason, v1::TOO_MANY);
  EXPECT_EQ(error->limit, "<= 180 bytes");
}

TEST_F(SplitTest, LongHistoryIsReplayedInPieces) {
  client::SequenceOptions sequence;
  sequence.request_id = "r";
  sequence.parameters.set_presence_penalty(1);
  sequence.prompt = {1, 2, 3, 4, 5, 6, 7, 0, 1, 2};
  const auto opened = harness.Open(sequence);
  std::vector<uint32_t> tokens;
  std::set<uint64_t> epochs;
  for (const bool more : {true, true, false}) {
    const v1::OpenSequence piece = harness.TakeOpen(harness.stream(0));
    EXPECT_EQ(piece.history().offset(), tokens.size());
    EXPECT_EQ(piece.history().prompt_length(), 10);
    EXPECT_EQ(piece.history().continues(), more);
    epochs.insert(piece.epoch());
    tokens.insert(tokens.end(), piece.history().tokens().begin(), piece.history().tokens().end());
    if (!more) harness.AcceptOpen(harness.stream(0), piece, true, 10, StateHarness::HashOf(piece, tokens));
  }
  EXPECT_EQ(tokens, sequence.prompt);
  EXPECT_EQ(epochs.size(), 1);
  EXPECT_TRUE(opened.status->ok());
}

TEST(SplitByTheServersLimitTest, HistoryIsSplitByServersLimit) {
  constexpr uint64_t kMost = 180;
  StateHarness harness(HarnessOptions());
  harness.Welcome(harness.stream(0), kMost);
  client::SequenceOptions sequence;
  sequence.request_id = "r";
  sequence.parameters.set_presence_penalty(1);
  for (uint32_t i = 0; i < 1000; ++i) sequence.prompt.push_back(i % StateHarness::kVocabulary);
  const auto opened = harness.Open(sequence);
  std::vector<uint32_t> tokens;
  for (bool more = true; more;) {
    const SentMessage message = harness.Take(harness.stream(0), v1::StreamRequest::kOpen);
    EXPECT_LE(message.bytes, kMost);
    const v1::OpenSequence& piece = message.message.open();
    EXPECT_EQ(piece.history().offset(), tokens.size());
    tokens.insert(tokens.end(), piece.history().tokens().begin(), piece.history().tokens().end());
    more = piece.history().continues();
    if (!more) harness.AcceptOpen(harness.stream(0), piece, true, 1000, StateHarness::HashOf(piece, tokens));
  }
  EXPECT_EQ(tokens, sequence.prompt);
  EXPECT_TRUE(opened.status->ok());
}

// Options have no parts: an open whose options alone exceed the limit fails, and the others travel.
TEST(SplitByTheServersLimitTest, OpenOfTooManyOptionsFailsAlone) {
  StateHarness harness(HarnessOptions());
  const auto open = [&](const std::string& id, uint32_t words) {
    client::SequenceOptions sequence;
    sequence.request_id = id;
    for (uint32_t i = 0; i < words; ++i) sequence.parameters.add_bad_words()->add_tokens(i % StateHarness::kVocabulary);
    return harness.Open(sequence);
  };
  const auto first = open("a", 0);
  const auto large = open("b", 100);
  const auto last = open("c", 0);
  harness.Welcome(harness.stream(0), 180);
  for (const auto* opened : {&first, &last}) {
    const v1::OpenSequence message = harness.TakeOpen(harness.stream(0));
    EXPECT_EQ(message.request_id(), opened->record->options.request_id);
    harness.AcceptOpen(harness.stream(0), message, /*stateful=*/false);
    EXPECT_TRUE(opened->status->ok());
  }
  EXPECT_TRUE(harness.stream(0).sent.empty());
  const auto error = client::ErrorOf(*large.status);
  ASSERT_TRUE(error.has_value()) << *large.status;
  EXPECT_EQ(error->reason, v1::TOO_MANY);
  EXPECT_EQ(error->field, "open");
  EXPECT_EQ(error->limit, "<= 180 bytes");
}

}  // namespace
}  // namespace sortition::testing::split_test

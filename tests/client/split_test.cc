// What is too long for one message travels in several.
#include <set>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/client/state_harness.h"

namespace sortition::testing {
namespace {

class SplitTest : public ::testing::Test {
 protected:
  SplitTest() { harness.Welcome(harness.stream(0)); }

  static client::ClientOptions Split() {
    client::ClientOptions options = HarnessOptions();
    options.message_bytes = 3 * sizeof(float) * StateHarness::kVocabulary + 5;  // three rows and a bit
    options.history_piece_tokens = 4;
    return options;
  }

  StateHarness harness{Split()};
};

TEST_F(SplitTest, LargeBatchGoesOutInWholeRowsOfTheCallersMemory) {
  std::vector<std::shared_ptr<client::SequenceRecord>> records;
  for (int i = 0; i < 8; ++i)
    records.push_back(harness.OpenOn(harness.stream(0), std::string(1, static_cast<char>('a' + i)), false));
  const auto outcome = harness.Submit(records);
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
  // Answers gather in the batch's order, whatever order they come in.
  for (int s : {2, 0, 1}) {
    for (int i = steps[static_cast<size_t>(s)].rows_size() - 1; i >= 0; --i) {
      harness.AnswerRow(harness.stream(0), steps[static_cast<size_t>(s)], i, static_cast<uint32_t>(3 * s + i) % 8);
    }
  }
  ASSERT_EQ(outcome->times, 1);
  for (size_t i = 0; i < 8; ++i) EXPECT_EQ(DrawOfRow(outcome->rows[i])->token(), i);
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

}  // namespace
}  // namespace sortition::testing

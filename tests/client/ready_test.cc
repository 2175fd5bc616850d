// Batches that are stepped before their logits are written, without a server that reads the ready word: the client
// waits for the word and then sends them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>

#include "tests/client/state_harness.h"

namespace sortition::testing::ready_test {
namespace {

class ReadyTest : public ::testing::Test {
 protected:
  ReadyTest() {
    harness.Welcome(harness.stream(0));
    record = harness.OpenOn(harness.stream(0), "r", false);
  }

  StateHarness harness{[] {
    client::ClientOptions options;
    options.targets = {"one"};
    return options;
  }()};
  std::shared_ptr<client::SequenceRecord> record;
  uint32_t word = UINT32_MAX;
};

TEST_F(ReadyTest, RowsAreSentWhenWordIsSet) {
  const auto results = harness.Submit({record}, absl::Seconds(60), client::ReadyWord{&word, 1});
  EXPECT_TRUE(harness.stream(0).sent.empty());
  // The client checks the word again after a short time, until it is set.
  for (int i = 0; i < 3; ++i) {
    const absl::Time next = harness.state.next_event(harness.now);
    EXPECT_LE(next, harness.now + absl::Milliseconds(1));
    harness.MoveBy(next - harness.now);
    EXPECT_TRUE(harness.stream(0).sent.empty());
  }
  word = 1;
  harness.MoveBy(absl::Milliseconds(1));
  const v1::Step step = harness.TakeStep(harness.stream(0));
  EXPECT_FALSE(step.logits().has_ready());
  EXPECT_GT(harness.state.next_event(harness.now), harness.now + absl::Seconds(1));
  harness.AnswerRow(harness.stream(0), step, 0, 5);
  EXPECT_EQ(std::get<v1::DrawResult>(results->rows.at(0)).token(), 5u);
}

TEST_F(ReadyTest, LaterWordCountsAsSetAcrossWraparound) {
  word = 3;
  harness.Submit({record}, absl::Seconds(60), client::ReadyWord{&word, UINT32_MAX});
  EXPECT_EQ(harness.TakeStep(harness.stream(0)).rows_size(), 1);
}

TEST_F(ReadyTest, MissingRowsFailByName) {
  const auto results = harness.Submit({record}, absl::Seconds(2), client::ReadyWord{&word, 1});
  harness.MoveBy(absl::Seconds(2));
  ASSERT_EQ(results->times, 1);
  const auto* const error = std::get_if<client::RowError>(&results->rows.at(0));
  ASSERT_NE(error, nullptr);
  EXPECT_EQ(error->reason, v1::DEADLINE_PASSED);
  EXPECT_EQ(error->field, "ready");
  // Nothing was sent, and the sequence can be stepped.
  harness.Submit({record});
  EXPECT_EQ(harness.TakeStep(harness.stream(0)).rows_size(), 1);
}

}  // namespace
}  // namespace sortition::testing::ready_test

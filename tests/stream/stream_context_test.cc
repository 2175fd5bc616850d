// The memory of steps that are over serves later ones.
#include "service/stream/stream_context.h"

#include <gtest/gtest.h>

#include <memory>

#include "tests/support/recording_sink.h"

namespace sortition::service::stream_context_test {
namespace {

constexpr uint64_t kSmall = 1000;  // bytes of a step
constexpr uint64_t kLargest = 16 << 10;

std::unique_ptr<v1::Step> UsedStep() {
  auto step = std::make_unique<v1::Step>();
  step->set_batch_id(7);
  step->add_rows()->set_request_id("a");
  return step;
}

class StreamContextTest : public ::testing::Test {
 protected:
  // Returns true if the next step, which is empty, has memory for rows from an earlier one.
  bool IsReused() {
    const std::unique_ptr<v1::Step> step = stream_.NewStep();
    EXPECT_EQ(step->ByteSizeLong(), 0u);
    return step->rows().Capacity() > 0;
  }

  StreamContext stream_{Limits(), "tenant", std::make_shared<testing::RecordingSink>()};
};

TEST_F(StreamContextTest, AStepIsReusedOnce) {
  EXPECT_FALSE(IsReused());
  stream_.Reuse(UsedStep(), kSmall);
  EXPECT_TRUE(IsReused());
  EXPECT_FALSE(IsReused());
}

TEST_F(StreamContextTest, LargeStepsAreFreed) {
  stream_.Reuse(UsedStep(), kLargest + 1);
  EXPECT_FALSE(IsReused());
  stream_.Reuse(UsedStep(), kLargest);
  EXPECT_TRUE(IsReused());
}

TEST_F(StreamContextTest, TwoAreKept) {
  for (int i = 0; i < 3; ++i) stream_.Reuse(UsedStep(), kSmall);
  EXPECT_TRUE(IsReused());
  EXPECT_TRUE(IsReused());
  EXPECT_FALSE(IsReused());
}

TEST_F(StreamContextTest, AClosedStreamKeepsNone) {
  stream_.Reuse(UsedStep(), kSmall);
  stream_.Close();
  stream_.Reuse(UsedStep(), kSmall);
  EXPECT_FALSE(IsReused());
}

}  // namespace
}  // namespace sortition::service::stream_context_test

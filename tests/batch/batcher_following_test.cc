// Rows that follow others of their step, and were admitted with them.
#include <gtest/gtest.h>

#include <thread>

#include "tests/batch/batcher_fixture.h"

namespace sortition::service::batcher_following_test {
namespace {

using testing::FakeDevice;
using Positions = std::vector<uint32_t>;
using BatcherFollowing = BatcherTest;

// A step in which each row is followed by another, up to `length` rows.
class FollowedStep : public RecordingStep, public std::enable_shared_from_this<FollowedStep> {
 public:
  FollowedStep(Batcher* batcher, uint32_t length) : batcher_(*batcher), length_(length) {}
  void Deliver(std::span<const QueuedOutput> outputs) override {
    std::vector<QueuedRow> rows;
    for (const QueuedOutput& output : outputs) {
      if (output.index + 1 == length_) continue;
      rows.push_back(RowsAt(output.index + 1, 1)[0]);
      rows.back().index = output.index + 1;
    }
    if (!rows.empty()) batcher_.Continue(shared_from_this(), std::move(rows));
    RecordingStep::Deliver(outputs);
  }

 private:
  Batcher& batcher_;
  const uint32_t length_;
};

TEST_F(BatcherFollowing, FollowingRowsAreTakenDespiteFullQueue) {
  limits_.max_queued_rows = 2;
  FakeDevice& device = AddDevice({.max_batch_rows = 1});
  const auto step = std::make_shared<FollowedStep>(&batcher(), 4);
  ASSERT_FALSE(batcher().Submit(step, RowsAt(0, 1)).has_value());
  const auto other = Submit(10, 2);
  ASSERT_TRUE(batcher().Submit(Step(), RowsAt(20, 1)).has_value()) << "the queue is full";
  for (const uint32_t position : {0u, 10u, 11u, 1u, 2u, 3u}) {
    ASSERT_EQ(device.held(), 1u);
    EXPECT_EQ(device.Positions(0), Positions{position});
    device.Finish();
  }
  EXPECT_EQ(device.held(), 0u);
  for (uint32_t i = 0; i < 4; ++i) EXPECT_EQ(step->Token(i), i);
  EXPECT_EQ(other->delivered(), 2u);
}

// The batcher is not destroyed between two of them.
TEST_F(BatcherFollowing, DestructionWaitsForFollowingRows) {
  FakeDevice& device = AddDevice({.max_batch_rows = 1});
  const auto step = std::make_shared<FollowedStep>(&batcher(), 50);
  ASSERT_FALSE(batcher().Submit(step, RowsAt(0, 1)).has_value());
  std::thread finishing([&] { device.FinishAll(); });
  batcher_.reset();
  EXPECT_EQ(step->delivered(), 50u);
  finishing.join();
}

}  // namespace
}  // namespace sortition::service::batcher_following_test

// The rules of the queue: which rows go next, which fit, and which are refused.
#include <gtest/gtest.h>

#include <thread>

#include "absl/synchronization/notification.h"
#include "tests/batch/batcher_fixture.h"

namespace sortition::service::batcher_test {
namespace {

using testing::FakeDevice;
using Positions = std::vector<uint32_t>;

TEST_F(BatcherTest, IdleDeviceStartsAtOnce) {
  FakeDevice& device = AddDevice({.max_batch_rows = 8});
  const auto step = Submit(10, 1);
  ASSERT_EQ(device.held(), 1u);
  EXPECT_EQ(device.Positions(0), Positions{10});
  EXPECT_EQ(batcher().queued_rows(), 0u);
  EXPECT_EQ(step->delivered(), 0u);
  device.Finish();
  EXPECT_EQ(step->Token(0), 10u);
  EXPECT_EQ(observer_.totals().batches, 1u);
}

TEST_F(BatcherTest, FreeSubmitterRunsAShortBatchItself) {
  FakeDevice& device = AddDevice({.max_batch_rows = 8, .runs_here = true});
  const auto here = SubmitRows(RowsAt(10, 2), Submitter::kFree);
  EXPECT_EQ(here->Token(1), 11u);
  // A busy thread hands the batch over, and so does one with rows that must wait for the device.
  const auto busy = Submit(20, 1);
  const auto behind = SubmitRows(RowsAt(30, 1), Submitter::kFree);
  EXPECT_EQ(device.held(), 1u);
  EXPECT_EQ(behind->delivered(), 0u);
  device.Finish();
  EXPECT_EQ(busy->Token(0), 20u);
  EXPECT_EQ(behind->delivered(), 0u) << "the device's thread hands it over, too";
  device.Finish();
  EXPECT_EQ(behind->Token(0), 30u);
}

TEST_F(BatcherTest, LongBatchIsHandedOver) {
  FakeDevice& device = AddDevice({.max_batch_rows = 1000, .runs_here = true});
  for (const Submitter from : {Submitter::kFree, Submitter::kOwned}) {
    const auto step = SubmitRows(RowsAt(0, 100), from);
    EXPECT_EQ(device.held(), 1u);
    EXPECT_EQ(step->delivered(), 0u);
    device.Finish();
    EXPECT_EQ(step->Token(99), 99u);
    batcher_.reset();  // the next one has measured no batch
  }
}

TEST_F(BatcherTest, SubmitterOfOneStreamRunsALongerBatchItself) {
  AddDevice({.max_batch_rows = 1000, .runs_here = true});
  const auto step = SubmitRows(RowsAt(0, 40), Submitter::kOwned);
  EXPECT_EQ(step->Token(39), 39u);
}

TEST_F(BatcherTest, BatchThatThreadsDoSoonerTogetherIsHandedOver) {
  FakeDevice& device = AddDevice({.max_batch_rows = 1000, .batches_in_flight = 4, .runs_here = true});
  const auto many = SubmitRows(RowsAt(10, 4), Submitter::kFree);
  EXPECT_EQ(device.held(), 1u);
  const auto few = SubmitRows(RowsAt(0, 2), Submitter::kFree);
  EXPECT_EQ(few->Token(1), 1u);
  device.Finish();
  EXPECT_EQ(many->Token(3), 13u);
}

TEST_F(BatcherTest, RowsArrivingWhileBusyShareABatch) {
  FakeDevice& device = AddDevice({.max_batch_rows = 8});
  const auto first = Submit(10, 1);
  const auto second = Submit(20, 2);
  const auto third = Submit(30, 3);
  EXPECT_EQ(device.held(), 1u);
  EXPECT_EQ(batcher().queued_rows(), 5u);
  device.Finish();
  ASSERT_EQ(device.held(), 1u);
  EXPECT_EQ(device.Positions(0), (Positions{20, 21, 30, 31, 32}));
  device.Finish();
  for (uint32_t i = 0; i < 2; ++i) EXPECT_EQ(second->Token(i), 20 + i);
  for (uint32_t i = 0; i < 3; ++i) EXPECT_EQ(third->Token(i), 30 + i);
  EXPECT_EQ(second->calls(), 1u) << "the rows of a step in a batch are delivered together";
}

TEST_F(BatcherTest, BatchHasAtMostDevicesRows) {
  FakeDevice& device = AddDevice({.max_batch_rows = 4, .batches_in_flight = 2});
  const auto step = Submit(0, 10);
  ASSERT_EQ(device.held(), 2u);
  EXPECT_EQ(device.Positions(0), (Positions{0, 1, 2, 3}));
  EXPECT_EQ(device.Positions(1), (Positions{4, 5, 6, 7}));
  EXPECT_EQ(batcher().queued_rows(), 2u);
  // The second batch ends first.
  device.Finish(1);
  ASSERT_EQ(device.held(), 2u);
  EXPECT_EQ(device.Positions(1), (Positions{8, 9}));
  EXPECT_EQ(step->delivered(), 4u);
  device.FinishAll();
  for (uint32_t i = 0; i < 10; ++i) EXPECT_EQ(step->Token(i), i);
}

TEST_F(BatcherTest, BatchDurationIsBounded) {
  FakeDevice& device = AddDevice({.max_batch_rows = 1000});
  for (int batch = 0; batch < 100; ++batch) {
    const uint32_t rows = batch % 2 == 0 ? 1 : 4;
    Submit(0, rows);
    clock_.Advance(rows * absl::Milliseconds(2));
    device.Finish();
  }
  Submit(0, 1);
  Submit(100, 100);
  device.Finish();
  EXPECT_EQ(device.Positions(0), (Positions{100, 101, 102, 103, 104, 105})) << "of 2 ms each";
  Submit(300, 1, 1);
  device.Finish();
  EXPECT_EQ(device.Positions(0).front(), 300u);
}

TEST_F(BatcherTest, RunsOfAStepAreKept) {
  FakeDevice& device = AddDevice({.max_batch_rows = 2});
  const absl::Time arrived = clock_.Now();
  const auto step = Step();
  Submit(step, 0, 20);
  for (int batch = 0; batch < 10; ++batch) {
    clock_.Advance(absl::Milliseconds(3));
    device.Finish();
  }
  std::vector<BatchRun> runs;
  EXPECT_EQ(step->runs().AppendTo(&runs), 2u);
  ASSERT_EQ(runs.size(), BatchRuns::kMostRuns);
  EXPECT_EQ(runs[1].device, device.description().name);
  EXPECT_EQ(runs[1].rows, 2u);
  EXPECT_EQ(runs[1].queued, arrived);
  EXPECT_EQ(runs[1].started, arrived + absl::Milliseconds(3));
  EXPECT_EQ(runs[1].ended, arrived + absl::Milliseconds(6));
}

TEST_F(BatcherTest, HighestPriorityFirstThenOldest) {
  FakeDevice& device = AddDevice({.max_batch_rows = 3});
  Submit(0, 1);
  Submit(10, 2, 0);
  Submit(20, 1, 5);
  Submit(30, 1, -5);
  Submit(40, 2, 5);
  Submit(50, 1, 0);
  std::vector<Positions> batches;
  for (device.Finish(); device.held() > 0; device.Finish()) batches.push_back(device.Positions(0));
  EXPECT_EQ(batches, (std::vector<Positions>{{20, 40, 41}, {10, 11, 50}, {30}}));
}

// A regression: rows of priority 100 on several streams kept a row of priority 0 waiting without end.
TEST_F(BatcherTest, OldestRowHasEverySixteenthTurn) {
  FakeDevice& device = AddDevice({.max_batch_rows = 1});
  Submit(0, 1);
  Submit(1000, 2, 0);
  Submit(2000, 1, -100);
  Submit(3000, 1, 100);
  std::vector<uint32_t> late;  // turns of the three rows that are not of the highest priority
  uint32_t high = 0;
  for (uint32_t turn = 1; late.size() < 3; ++turn) {
    Submit(4000 + turn, 1, 100);  // the load never ends
    device.Finish();
    const uint32_t position = device.Positions(0).front();
    if (position < 3000) late.push_back(turn);
    high += position >= 3000;
    ASSERT_LT(turn, 100u);
  }
  EXPECT_EQ(late, (std::vector<uint32_t>{16, 32, 48}));
  EXPECT_EQ(high, 45u);
}

// The turn is that of the oldest row of all priorities, not of the second one.
TEST_F(BatcherTest, TurnIsOfTheOldestOfAllPriorities) {
  FakeDevice& device = AddDevice({.max_batch_rows = 1});
  Submit(0, 1);
  Submit(1, 1, -100);
  for (uint32_t i = 0; i < 40; ++i) Submit(100 + i, 1, 50);
  Submit(2, 1, 0);
  Submit(200, 40, 100);
  std::vector<uint32_t> order;
  for (device.Finish(); device.held() > 0; device.Finish()) order.push_back(device.Positions(0).front());
  EXPECT_EQ(order[15], 1u);
  EXPECT_EQ(order[31], 100u);
  EXPECT_EQ(order.size(), 82u);
}

TEST_F(BatcherTest, NoTurnIsTakenWhereNoPriorityIsLower) {
  FakeDevice& device = AddDevice({.max_batch_rows = 1});
  Submit(0, 1);
  Submit(100, 40, 7);
  std::vector<uint32_t> order;
  for (device.Finish(); device.held() > 0; device.Finish()) order.push_back(device.Positions(0).front());
  EXPECT_TRUE(std::ranges::is_sorted(order));
}

TEST_F(BatcherTest, FullQueueTakesWholeStepOrNothing) {
  limits_.max_queued_rows = 5;
  FakeDevice& device = AddDevice({.max_batch_rows = 4});
  Submit(0, 4);
  const auto waiting = Submit(10, 3);
  auto refused = Step();
  const std::optional<Refusal> refusal = batcher().Submit(refused, RowsAt(20, 3));
  ASSERT_TRUE(refusal.has_value());
  EXPECT_EQ(refusal->reason, Reason::kOverloaded);
  EXPECT_GT(refusal->retry_after, absl::ZeroDuration());
  EXPECT_NE(refusal->limit.find("5"), std::string::npos);
  EXPECT_EQ(batcher().queued_rows(), 3u);
  const auto fits = Submit(30, 2);
  device.FinishAll();
  EXPECT_EQ(refused->delivered(), 0u);
  EXPECT_EQ(waiting->delivered(), 3u);
  EXPECT_EQ(fits->delivered(), 2u);
}

TEST_F(BatcherTest, StepLargerThanQueueIsRefused) {
  limits_.max_queued_rows = 5;
  FakeDevice& device = AddDevice({});
  EXPECT_EQ(batcher().Submit(Step(), RowsAt(0, 6))->reason, Reason::kOverloaded);
  EXPECT_EQ(device.held(), 0u);
}

TEST_F(BatcherTest, DeadlineBeforeTheStart) {
  FakeDevice& device = AddDevice({.max_batch_rows = 2});
  auto running = Step();
  running->deadline = clock_.Now() + absl::Seconds(1);
  Submit(running, 0, 1);
  auto late = Step();
  late->deadline = clock_.Now() + absl::Seconds(1);
  Submit(late, 10, 2);
  auto patient = Step();
  patient->deadline = clock_.Now() + absl::Seconds(1) + absl::Nanoseconds(1);
  Submit(patient, 20, 1);
  clock_.Advance(absl::Seconds(1));
  device.Finish();
  EXPECT_EQ(running->Token(0), 0u) << "what has started is answered";
  for (uint32_t i = 0; i < 2; ++i) EXPECT_EQ(late->WhyNot(i).reason, Reason::kDeadlinePassed);
  ASSERT_EQ(device.held(), 1u);
  EXPECT_EQ(device.Positions(0), Positions{20}) << "refused rows take no room";
  device.Finish();
  EXPECT_EQ(patient->Token(0), 20u);
}

TEST_F(BatcherTest, CancelBeforeTheStart) {
  FakeDevice& device = AddDevice({.max_batch_rows = 2});
  const auto running = Submit(0, 1);
  const auto waiting = Submit(10, 3);
  running->Cancel();
  waiting->Cancel();
  EXPECT_EQ(waiting->delivered(), 0u);
  device.Finish();
  EXPECT_EQ(running->Token(0), 0u);
  for (uint32_t i = 0; i < 3; ++i) EXPECT_EQ(waiting->WhyNot(i).reason, Reason::kStepCancelled);
  EXPECT_EQ(device.held(), 0u);
  EXPECT_EQ(batcher().queued_rows(), 0u);
}

TEST_F(BatcherTest, PartOfAStepMayHaveStarted) {
  FakeDevice& device = AddDevice({.max_batch_rows = 2});
  const auto step = Submit(0, 5);
  step->Cancel();
  device.FinishAll();
  for (uint32_t i = 0; i < 2; ++i) EXPECT_EQ(step->Token(i), i);
  for (uint32_t i = 2; i < 5; ++i) EXPECT_EQ(step->WhyNot(i).reason, Reason::kStepCancelled);
}

TEST_F(BatcherTest, SweepAnswersWithoutADevice) {
  FakeDevice& device = AddDevice({.max_batch_rows = 1});
  Submit(0, 1);
  const auto cancelled = Submit(10, 2, 3);
  auto late = Step(-3);
  late->deadline = clock_.Now() + absl::Seconds(1);
  Submit(late, 20, 2);
  const auto kept = Submit(30, 1);
  cancelled->Cancel();
  clock_.Advance(absl::Seconds(2));
  batcher().Sweep();
  EXPECT_EQ(cancelled->WhyNot(1).reason, Reason::kStepCancelled);
  EXPECT_EQ(late->WhyNot(1).reason, Reason::kDeadlinePassed);
  EXPECT_EQ(cancelled->calls(), 1u);
  EXPECT_EQ(batcher().queued_rows(), 1u);
  batcher().Sweep();
  EXPECT_EQ(kept->delivered(), 0u);
  device.FinishAll();
  EXPECT_EQ(kept->Token(0), 30u);
}

TEST_F(BatcherTest, SweptRowsMakeRoom) {
  limits_.max_queued_rows = 3;
  FakeDevice& device = AddDevice({.max_batch_rows = 1});
  Submit(0, 1);
  const auto cancelled = Submit(10, 3);
  EXPECT_TRUE(batcher().Submit(Step(), RowsAt(20, 1)).has_value());
  cancelled->Cancel();
  batcher().Sweep();
  const auto fits = Submit(30, 3);
  device.FinishAll();
  EXPECT_EQ(fits->delivered(), 3u);
}

TEST_F(BatcherTest, DeviceMayAnswerWithinSubmit) {
  AddDevice({.max_batch_rows = 2, .synchronous = true});
  const auto step = Submit(0, 7);
  for (uint32_t i = 0; i < 7; ++i) EXPECT_EQ(step->Token(i), i);
}

TEST_F(BatcherTest, QueueWaitIsThatOfOldestRow) {
  FakeDevice& device = AddDevice({.max_batch_rows = 8});
  Submit(0, 1);
  Submit(10, 1);
  clock_.Advance(absl::Seconds(2));
  Submit(20, 1);
  clock_.Advance(absl::Seconds(1));
  device.FinishAll();
  EXPECT_EQ(observer_.queue_waits(), (std::vector<absl::Duration>{absl::ZeroDuration(), absl::Seconds(3)}));
}

// Submits the next step from within Deliver, as a fast worker does.
class ResubmittingStep : public PendingStep {
 public:
  explicit ResubmittingStep(Batcher* batcher) : batcher_(*batcher) {}
  void Deliver(std::span<const QueuedOutput> outputs) override {
    EXPECT_EQ(outputs.size(), 1u);
    if (++rounds == 5) return;
    EXPECT_FALSE(batcher_.Submit(shared, RowsAt(static_cast<uint32_t>(rounds), 1)).has_value());
  }
  int rounds = 0;
  std::shared_ptr<PendingStep> shared;  // itself, while the test runs

 private:
  Batcher& batcher_;
};

TEST_F(BatcherTest, DeliveryHoldsNoLock) {
  FakeDevice& device = AddDevice({.max_batch_rows = 1});
  auto step = std::make_shared<ResubmittingStep>(&batcher());
  step->shared = step;
  EXPECT_FALSE(batcher().Submit(step, RowsAt(0, 1)).has_value());
  device.FinishAll();
  EXPECT_EQ(step->rounds, 5);
  step->shared = nullptr;
}

TEST_F(BatcherTest, StepsLiveAsLongAsTheirRows) {
  FakeDevice& device = AddDevice({.max_batch_rows = 1});
  std::weak_ptr<RecordingStep> step = Submit(0, 2);
  EXPECT_FALSE(step.expired());
  device.Finish();
  EXPECT_FALSE(step.expired());
  device.Finish();
  EXPECT_TRUE(step.expired());
}

TEST_F(BatcherTest, DestructionWaitsForEveryRow) {
  FakeDevice& device = AddDevice({.max_batch_rows = 1});
  const auto step = Submit(0, 3);
  absl::Notification destroyed;
  size_t delivered_by_then = 0;
  std::thread destroyer([&] {
    batcher_.reset();
    delivered_by_then = step->delivered();
    destroyed.Notify();
  });
  for (int left = 3; left > 0; --left) {
    EXPECT_FALSE(destroyed.HasBeenNotified());
    device.Finish();
  }
  destroyer.join();
  EXPECT_EQ(delivered_by_then, 3u);
}

}  // namespace
}  // namespace sortition::service::batcher_test

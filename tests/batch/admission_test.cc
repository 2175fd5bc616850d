// Admission to the queue by rows, by time and by deadline; and shares and deadlines under more load than there is
// capacity.
#include "service/batch/admission.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <queue>

#include "service/batch/batcher.h"
#include "tests/support/counting_observer.h"
#include "tests/support/fake_clock.h"
#include "tests/support/fake_device.h"
#include "tests/support/pending_step.h"

namespace sortition::service::admission_test {
namespace {

using testing::FakeDevice;
using ::testing::HasSubstr;

// A device that takes a millisecond a row, as the router knows.
class AdmissionTest : public ::testing::Test {
 protected:
  ~AdmissionTest() override { device_.FinishAll(); }

  Batcher& batcher() {
    if (batcher_) return *batcher_;
    batcher_ = std::make_unique<Batcher>(limits_, std::vector<devices::Device*>{&device_}, &clock_, &observer_);
    for (int batch = 0; batch < 100; ++batch) {
      Submit({9, 9}, 10);
      clock_.Advance(absl::Milliseconds(10));
      device_.Finish();
    }
    return *batcher_;
  }
  std::shared_ptr<RecordingStep> Step(QueueOwner owner) {
    auto step = std::make_shared<RecordingStep>();
    step->owner = owner;
    step->arrived = clock_.Now();
    return step;
  }
  std::optional<Refusal> Submit(QueueOwner owner, uint32_t rows, absl::Duration timeout = absl::InfiniteDuration(),
                                int32_t priority = 0) {
    const auto step = Step(owner);
    step->deadline = clock_.Now() + timeout;
    step->priority = priority;
    return batcher().Submit(step, RowsAt(0, rows));
  }
  // Submits steps of one row until one is refused; returns the number of accepted ones.
  uint32_t Fill(QueueOwner owner) {
    for (uint32_t rows = 0;; ++rows) {
      if (Submit(owner, 1)) return rows;
    }
  }

  Limits limits_;
  testing::FakeClock clock_;
  testing::CountingObserver observer_;
  FakeDevice device_{{.max_batch_rows = 10, .sample = PositionAsToken}};
  std::unique_ptr<Batcher> batcher_;
};

TEST_F(AdmissionTest, TooLongExpectedWaitIsRefusedAtOnce) {
  limits_.max_queue_time = absl::Milliseconds(100);
  Submit({0, 0}, 10);  // runs
  EXPECT_NEAR(Fill({0, 0}), 100, 3);
  const auto refusal = Submit({0, 0}, 1);
  ASSERT_TRUE(refusal.has_value());
  EXPECT_EQ(refusal->reason, Reason::kOverloaded);
  EXPECT_EQ(refusal->limit, "max_queue_time 100");
  EXPECT_THAT(refusal->message, HasSubstr("would wait about 10"));
  EXPECT_NEAR(absl::ToDoubleMilliseconds(refusal->retry_after), 50, 3);
}

TEST_F(AdmissionTest, QueueShareIsOneWhereTimeRefuses) {
  limits_.max_queue_time = absl::Milliseconds(100);
  EXPECT_EQ(batcher().queue_share(), 0);
  Submit({0, 0}, 10);  // runs
  EXPECT_EQ(batcher().queue_share(), 0);
  Submit({0, 0}, 50);
  EXPECT_NEAR(batcher().queue_share(), 0.5, 0.05);
  Fill({0, 0});
  EXPECT_NEAR(batcher().queue_share(), 1, 0.05);
}

TEST_F(AdmissionTest, QueueShareIsOneWhereRowsRefuse) {
  limits_.max_queue_time = absl::ZeroDuration();
  limits_.max_queued_rows = 100;
  Submit({0, 0}, 10);
  Submit({0, 0}, 79);
  EXPECT_NEAR(batcher().queue_share(), 0.79, 1e-9);
  EXPECT_FALSE(Submit({1, 1}, 16).has_value());
  EXPECT_NEAR(batcher().queue_share(), 0.95, 1e-9);
}

TEST_F(AdmissionTest, StepWithEmptyQueueIsAlwaysTaken) {
  limits_.max_queue_time = absl::Milliseconds(100);
  EXPECT_FALSE(Submit({0, 0}, 5000).has_value());
}

TEST_F(AdmissionTest, NoStepIsRefusedForTimeIfOff) {
  limits_.max_queue_time = absl::ZeroDuration();
  Submit({0, 0}, 10);
  EXPECT_FALSE(Submit({0, 0}, 5000).has_value());
  EXPECT_FALSE(Submit({0, 0}, 5000).has_value());
}

TEST_F(AdmissionTest, StepThatWouldMissDeadlineIsRefused) {
  Submit({0, 0}, 10);
  Submit({0, 0}, 50);
  EXPECT_FALSE(Submit({0, 0}, 1, absl::Milliseconds(60)).has_value());
  const auto refusal = Submit({0, 0}, 1, absl::Milliseconds(40));
  ASSERT_TRUE(refusal.has_value());
  EXPECT_EQ(refusal->limit, "step.timeout");
  EXPECT_FALSE(Submit({0, 1}, 1, absl::Milliseconds(40)).has_value()) << "the other's rows do not go before it";
}

TEST_F(AdmissionTest, OthersQueuesDoNotCount) {
  limits_.max_queue_time = absl::Milliseconds(100);
  Submit({0, 0}, 10);
  const uint32_t alone = Fill({0, 0});
  EXPECT_NEAR(Fill({0, 1}), alone / 2, 3) << "of two streams";
  EXPECT_NEAR(Fill({1, 2}), alone / 2, 3) << "of two namespaces";
  EXPECT_FALSE(Submit({2, 3}, 1).has_value());
}

TEST_F(AdmissionTest, RowsOfLowerPriorityDoNotCount) {
  limits_.max_queue_time = absl::Milliseconds(100);
  Submit({0, 0}, 10);
  Fill({0, 0});
  EXPECT_TRUE(Submit({0, 0}, 1).has_value());
  EXPECT_FALSE(Submit({0, 0}, 1, absl::InfiniteDuration(), 1).has_value());
  for (uint64_t stream = 1; stream <= 3; ++stream) {
    for (int i = 0; i < 50; ++i) Submit({0, stream}, 1, absl::InfiniteDuration(), 1);
  }
  EXPECT_TRUE(Submit({0, 2}, 1).has_value()) << "and those of higher priority do";
}

// It has a turn after a few rows, however long the queue of the others is (RowQueue::kTurnOfOldest).
TEST_F(AdmissionTest, HigherPrioritiesCountUpToTheOldestsTurn) {
  limits_.max_queue_time = absl::Milliseconds(100);
  Submit({0, 0}, 10);
  while (!Submit({0, 1}, 1, absl::InfiniteDuration(), 100)) continue;
  EXPECT_FALSE(Submit({1, 2}, 1).has_value());
}

TEST_F(AdmissionTest, EveryTenantLeavesRoomForAnother) {
  limits_.max_queue_time = absl::ZeroDuration();
  limits_.max_queued_rows = 810;
  Submit({0, 0}, 10);
  EXPECT_EQ(Fill({0, 0}), 640u) << "the namespace leaves 90 rows, the stream 80 of what is left";
  EXPECT_EQ(Fill({0, 1}), 72u) << "of 80, which leaves 8";
  EXPECT_EQ(Fill({1, 2}), 79u) << "of 98, less a ninth for namespaces and then a ninth for streams";
  const auto refusal = Submit({0, 0}, 1);
  ASSERT_TRUE(refusal.has_value());
  EXPECT_EQ(refusal->limit, "max_queued_rows 810");
  EXPECT_GT(refusal->retry_after, absl::ZeroDuration());
  EXPECT_FALSE(Submit({2, 3}, 1).has_value());
}

// Workers that send a step at a fixed interval, whether or not the step before was served, in virtual time.
class Overload : public AdmissionTest {
 protected:
  struct Greed {
    QueueOwner owner;
    absl::Duration every;
    uint32_t rows;
  };
  struct Got {
    uint64_t rows = 0;
    absl::Duration longest = absl::ZeroDuration();
  };

  // Returns the shares of all workers while all of them ask, after the queue has filled. Expects the device never to be
  // idle.
  std::map<uint64_t, Got> Run(const std::vector<Greed>& greeds, absl::Duration timeout) {
    std::map<uint64_t, Got> got;
    std::vector<absl::Time> next(greeds.size(), clock_.Now());
    const absl::Time measured_from = clock_.Now() + absl::Seconds(2);
    const absl::Time end = clock_.Now() + absl::Seconds(12);
    batcher();
    while (clock_.Now() < end) {
      for (size_t i = 0; i < greeds.size(); ++i) {
        for (; next[i] <= clock_.Now(); next[i] += greeds[i].every) {
          const auto step = Step(greeds[i].owner);
          step->deadline = clock_.Now() + timeout;
          if (!batcher().Submit(step, RowsAt(0, greeds[i].rows))) waiting_.push_back({step, greeds[i].rows});
        }
      }
      // A batch of ten rows.
      EXPECT_EQ(device_.held(), 1u) << "the device is idle under load";
      EXPECT_TRUE(device_.Positions(0).size() == 10 || clock_.Now() < measured_from);
      clock_.Advance(absl::Milliseconds(10));
      device_.Finish();
      batcher().Sweep();
      std::erase_if(waiting_, [&](const Waiting& waiting) {
        const absl::Duration took = clock_.Now() - waiting.step->arrived;
        if (waiting.step->delivered() < waiting.rows) return false;
        if (clock_.Now() < measured_from) return true;
        Got& one = got[waiting.step->owner.stream];
        for (uint32_t row = 0; row < waiting.rows; ++row) one.rows += !waiting.step->WasRefused(row);
        one.longest = std::max(one.longest, took);
        return true;
      });
    }
    return got;
  }

  static constexpr absl::Duration kBatch = absl::Milliseconds(10);
  struct Waiting {
    std::shared_ptr<RecordingStep> step;
    uint32_t rows;
  };
  std::vector<Waiting> waiting_;
};

TEST_F(Overload, GreedySharesAreEqualModestNeedsAreMet) {
  limits_.max_queue_time = absl::Milliseconds(100);
  // A thousand rows a second; 100 + 1000 + 2000 + 1000 are requested.
  const auto got = Run({{{0, 0}, absl::Milliseconds(10), 1},
                        {{0, 1}, absl::Milliseconds(5), 5},
                        {{0, 2}, absl::Milliseconds(1), 2},
                        {{0, 3}, absl::Milliseconds(1), 1}},
                       absl::Seconds(30));
  EXPECT_NEAR(double(got.at(0).rows), 1000, 1) << "all it asked for";
  for (const uint64_t stream : {1, 2, 3}) EXPECT_NEAR(double(got.at(stream).rows), 3000, 60);
  EXPECT_LE(got.at(0).longest, 4 * kBatch);
  for (const uint64_t stream : {1, 2, 3}) EXPECT_LE(got.at(stream).longest, absl::Milliseconds(150));
}

TEST_F(Overload, TenantOfManyStreamsGetsNoMore) {
  limits_.max_queue_time = absl::Milliseconds(100);
  std::vector<Greed> greeds = {{{0, 0}, absl::Milliseconds(1), 1}};
  for (uint64_t stream = 1; stream <= 5; ++stream) greeds.push_back({{1, stream}, absl::Milliseconds(1), 1});
  const auto got = Run(greeds, absl::Seconds(30));
  EXPECT_NEAR(double(got.at(0).rows), 5000, 100);
  for (uint64_t stream = 1; stream <= 5; ++stream) EXPECT_NEAR(double(got.at(stream).rows), 1000, 20);
}

// With deadlines shorter than the queue, no row is computed after its deadline, and the device still has enough work.
TEST_F(Overload, DeadlinesAreKeptOrRefused) {
  const auto got =
      Run({{{0, 0}, absl::Milliseconds(1), 2}, {{0, 1}, absl::Milliseconds(1), 2}}, absl::Milliseconds(60));
  EXPECT_NEAR(double(got.at(0).rows + got.at(1).rows), 10000, 100);
}

}  // namespace
}  // namespace sortition::service::admission_test

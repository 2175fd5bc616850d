// Random schedules: in any order of events, every row is delivered exactly once, in the order of the rules.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <deque>
#include <map>
#include <random>
#include <set>
#include <thread>

#include "absl/strings/str_cat.h"
#include "service/batch/batcher.h"
#include "tests/support/fake_clock.h"
#include "tests/support/fake_device.h"
#include "tests/support/pending_step.h"
#include "tests/support/scale.h"

namespace sortition::service::batcher_schedule_test {
namespace {

using testing::FakeDevice;
using testing::Scaled;

// One random history of submits, finished and failed batches, cancels, passing time and sweeps, compared with a model
// of the queue, a sorted set. Rows of one client keep its order among any other rows.
class Schedule {
 public:
  explicit Schedule(uint64_t seed) : random_(seed) {
    limits_.max_queued_rows = 10 + Below(30);
    clients_ = Below(2) == 0 ? 1 : 3;
    std::vector<devices::Device*> devices;
    for (uint32_t i = 0; i < 1 + Below(3); ++i) {
      FakeDevice::Options options;
      options.name = absl::StrCat("fake", i);
      options.max_batch_rows = 1 + Below(6);
      options.batches_in_flight = 1 + Below(3);
      options.sample = PositionAsToken;
      devices_.push_back(std::make_unique<FakeDevice>(options));
      devices.push_back(devices_.back().get());
    }
    batcher_ = std::make_unique<Batcher>(limits_, devices, &clock_, &observer_);
  }

  void Run(uint32_t events) {
    for (uint32_t i = 0; i < events && !::testing::Test::HasFatalFailure(); ++i) {
      switch (Below(8)) {
        case 0:
        case 1:
        case 2:
          SubmitStep();
          break;
        case 3:
        case 4:
          EndBatch(true);
          break;
        case 5:
          EndBatch(false);
          break;
        case 6:
          if (!steps_.empty()) steps_[Below(static_cast<uint32_t>(steps_.size()))].step->Cancel();
          break;
        case 7:
          clock_.Advance(absl::Milliseconds(Below(50)));
          if (Below(2) == 0) {
            batcher_->Sweep();
            dispatched_ = clock_.Now();
          }
          break;
      }
      CheckQueue();
    }
    testing::FinishAll(devices_);
    EXPECT_EQ(batcher_->queued_rows(), 0u);
    batcher_.reset();
    CheckDelivered();
  }

 private:
  struct Submitted {
    std::shared_ptr<RecordingStep> step;
    uint32_t first = 0;
    uint32_t rows = 0;
  };

  uint32_t Below(uint32_t end) { return static_cast<uint32_t>(random_() % end); }

  void SubmitStep() {
    Submitted submitted{std::make_shared<RecordingStep>(), next_position_, 1 + Below(9)};
    submitted.step->priority = static_cast<int32_t>(Below(3)) - 1;
    submitted.step->arrived = clock_.Now();
    submitted.step->owner = {Below(clients_) / 2, Below(clients_)};
    if (Below(3) == 0) submitted.step->deadline = clock_.Now() + absl::Milliseconds(1 + Below(100));
    const uint32_t queued = batcher_->queued_rows();
    const auto refusal = batcher_->Submit(submitted.step, RowsAt(submitted.first, submitted.rows));
    // In between, the rules of admission_test.cc decide.
    const bool fits = queued + submitted.rows <= limits_.max_queued_rows;
    ASSERT_TRUE(fits || refusal.has_value());
    ASSERT_TRUE(!fits || queued > 0 || !refusal.has_value());
    if (refusal) {
      ASSERT_EQ(submitted.step->delivered(), 0u);
      return;
    }
    dispatched_ = clock_.Now();
    next_position_ += submitted.rows;
    steps_.push_back(submitted);
    for (uint32_t i = 0; i < submitted.rows; ++i) waiting_.insert(OrderOf(submitted.first + i));
  }

  void EndBatch(bool ok) {
    FakeDevice& device = *devices_[Below(static_cast<uint32_t>(devices_.size()))];
    if (device.held() == 0) return;
    const size_t index = Below(static_cast<uint32_t>(device.held()));
    dispatched_ = clock_.Now();
    if (ok) {
      device.Finish(index);
    } else {
      for (const uint32_t position : device.Positions(index)) {
        // Failed rows run again if there is another device, but not for ever.
        if (++attempts_[position] == Batcher::kMostAttempts || devices_.size() == 1) {
          failed_.insert(position);
        } else {
          waiting_.insert(OrderOf(position));
        }
      }
      device.Fail(absl::InternalError("scripted"), index);
    }
  }

  const Submitted& Owner(uint32_t position) const {
    const auto after = std::upper_bound(steps_.begin(), steps_.end(), position,
                                        [](uint32_t p, const Submitted& submitted) { return p < submitted.first; });
    return *std::prev(after);
  }

  // Smaller goes first: higher priority, then, for one owner, lower position, which is the older row.
  using Order = std::pair<int32_t, uint32_t>;
  bool AreOfOneClient(const Order& a, const Order& b) const {
    const QueueOwner& one = Owner(a.second).step->owner;
    const QueueOwner& other = Owner(b.second).step->owner;
    return one.tenant == other.tenant && one.stream == other.stream;
  }
  void CheckOrder(const Order& first, const Order& second) {
    if (first.first > second.first) {
      by_age_.insert(first.second);
    } else {
      ASSERT_TRUE(first < second || !AreOfOneClient(first, second));
    }
  }
  Order OrderOf(uint32_t position) const { return {-Owner(position).step->priority, position}; }

  bool WasRefused(const Order& row) const {
    const Submitted& owner = Owner(row.second);
    return owner.step->WasRefused(row.second - owner.first);
  }

  // Updates the model and compares the batches that have started since the last event.
  void CheckQueue() {
    std::vector<Order> started;
    for (const auto& device : devices_) {
      for (size_t index = 0; index < device->held(); ++index) {
        std::vector<Order> batch;
        for (const uint32_t position : device->Positions(index)) batch.push_back(OrderOf(position));
        for (size_t i = 1; i < batch.size(); ++i) CheckOrder(batch[i - 1], batch[i]);
        for (const Order& row : batch) {
          if (waiting_.erase(row) == 1) started.push_back(row);
        }
      }
    }
    taken_ += started.size() + std::erase_if(waiting_, [&](const Order& row) { return WasRefused(row); });
    ASSERT_LE(by_age_.size() * RowQueue::kTurnOfOldest, taken_);
    ASSERT_EQ(batcher_->queued_rows(), waiting_.size());
    if (waiting_.empty()) return;
    for (const Order& row : started) {
      for (const Order& waiting : waiting_) CheckOrder(row, waiting);
    }
    // Checks that rows wait for a device that is full, and only because the router has them wait.
    ASSERT_TRUE(std::ranges::any_of(
        devices_, [](const auto& device) { return device->held() == device->description().batches_in_flight; }));
    const auto open = WholeIfAlike(RowsAt(0, static_cast<uint32_t>(waiting_.size())));
    ASSERT_EQ(batcher_->keeper().Choose(*open, dispatched_).device, nullptr);
  }

  void CheckDelivered() const {
    for (const Submitted& submitted : steps_) {
      ASSERT_EQ(submitted.step->delivered(), submitted.rows);
      for (uint32_t i = 0; i < submitted.rows; ++i) {
        const uint32_t position = submitted.first + i;
        if (!submitted.step->WasRefused(i)) {
          ASSERT_EQ(submitted.step->Token(i), position);
          ASSERT_EQ(failed_.count(position), 0u);
          continue;
        }
        const Reason reason = submitted.step->WhyNot(i).reason;
        ASSERT_EQ(reason == Reason::kDeviceFailed, failed_.count(position) == 1);
        ASSERT_TRUE(reason == Reason::kDeviceFailed ||
                    (reason == Reason::kStepCancelled && submitted.step->cancelled()) ||
                    (reason == Reason::kDeadlinePassed && submitted.step->deadline <= clock_.Now()));
      }
    }
  }

  std::mt19937_64 random_;
  Limits limits_;
  testing::FakeClock clock_;
  absl::Time dispatched_ = clock_.Now();  // the last time that batches were closed
  NullObserver observer_;
  std::vector<std::unique_ptr<FakeDevice>> devices_;
  std::unique_ptr<Batcher> batcher_;
  std::deque<Submitted> steps_;  // by first position
  std::set<Order> waiting_;
  std::map<uint32_t, uint32_t> attempts_;  // failed attempts by position
  std::set<uint32_t> failed_;              // positions
  std::set<uint32_t> by_age_;              // positions that went before a higher priority
  uint64_t taken_ = 0;                     // rows that have left the queue
  uint32_t next_position_ = 0;
  uint32_t clients_ = 1;
};

TEST(BatcherSchedule, RowsAreDeliveredOnceInRandomSchedules) {
  for (uint64_t seed = 0; seed < Scaled(1000); ++seed) {
    SCOPED_TRACE(seed);
    Schedule(seed).Run(200);
    if (::testing::Test::HasFailure()) return;
  }
}

// Threads that submit, cancel and sweep, with a queue that is mostly full, against threads that finish batches.
TEST(BatcherSchedule, RowsAreDeliveredOnceUnderThreads) {
  constexpr uint32_t kSubmitters = 3;
  const auto steps_each = static_cast<uint32_t>(Scaled(2000));
  Limits limits;
  limits.max_queued_rows = 64;
  testing::FakeClock clock;
  NullObserver observer;
  FakeDevice a({.name = "a", .max_batch_rows = 3, .batches_in_flight = 2, .sample = PositionAsToken});
  FakeDevice b({.name = "b", .max_batch_rows = 5, .batches_in_flight = 1, .sample = PositionAsToken});
  std::vector<std::shared_ptr<RecordingStep>> accepted[kSubmitters];
  uint64_t expected[kSubmitters] = {};
  {
    Batcher batcher(limits, {&a, &b}, &clock, &observer);
    std::atomic<uint32_t> submitting = kSubmitters;
    std::vector<std::thread> threads;
    for (uint32_t t = 0; t < kSubmitters; ++t) {
      threads.emplace_back([&, t] {
        std::mt19937_64 random(t);
        for (uint32_t i = 0; i < steps_each; ++i) {
          auto step = std::make_shared<RecordingStep>();
          step->priority = static_cast<int32_t>(random() % 3);
          const auto rows = static_cast<uint32_t>(1 + random() % 6);
          while (batcher.Submit(step, RowsAt(0, rows))) std::this_thread::yield();  // until it fits
          accepted[t].push_back(step);
          expected[t] += rows;
          if (random() % 8 == 0) {
            step->Cancel();
            batcher.Sweep();
          }
        }
        --submitting;
      });
    }
    // One finisher a device, so that no other thread waits for a held batch.
    for (FakeDevice* device : {&a, &b}) {
      threads.emplace_back([&, device] {
        while (submitting > 0 || batcher.queued_rows() > 0 || device->held() > 0) {
          device->FinishAll();
          std::this_thread::yield();
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    // A finishing thread may have started a batch on the other device after that one's thread had ended.
    while (a.held() > 0 || b.held() > 0) {
      a.FinishAll();
      b.FinishAll();
    }
  }
  for (uint32_t t = 0; t < kSubmitters; ++t) {
    uint64_t delivered = 0;
    for (const auto& step : accepted[t]) delivered += step->delivered();
    EXPECT_EQ(delivered, expected[t]);
  }
}

}  // namespace
}  // namespace sortition::service::batcher_schedule_test

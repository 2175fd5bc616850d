// A batcher over fake devices, with a fake clock.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <utility>
#include <vector>

#include "service/batch/batcher.h"
#include "tests/support/counting_observer.h"
#include "tests/support/fake_clock.h"
#include "tests/support/fake_device.h"
#include "tests/support/pending_step.h"

namespace sortition::service {

class BatcherTest : public ::testing::Test {
 protected:
  // A failed test may leave batches held, and the batcher's destructor would wait for them.
  ~BatcherTest() override { testing::FinishAll(devices_); }

  testing::FakeDevice& AddDevice(testing::FakeDevice::Options options) {
    options.sample = PositionAsToken;
    devices_.push_back(std::make_unique<testing::FakeDevice>(std::move(options)));
    return *devices_.back();
  }
  // Returns the batcher over all devices. By its clock batches take no time, so devices that have done some are alike.
  Batcher& batcher() {
    if (!batcher_) {
      std::vector<devices::Device*> devices;
      for (const auto& device : devices_) devices.push_back(device.get());
      batcher_ = std::make_unique<Batcher>(limits_, devices, &clock_, &observer_);
    }
    return *batcher_;
  }
  std::shared_ptr<RecordingStep> Step(int32_t priority = 0) {
    auto step = std::make_shared<RecordingStep>();
    step->priority = priority;
    step->arrived = clock_.Now();
    return step;
  }
  // Submits rows, which must fit.
  std::shared_ptr<RecordingStep> Submit(uint32_t first, uint32_t count, int32_t priority = 0) {
    auto step = Step(priority);
    Submit(step, first, count);
    return step;
  }
  void Submit(const std::shared_ptr<RecordingStep>& step, uint32_t first, uint32_t count) {
    EXPECT_FALSE(batcher().Submit(step, RowsAt(first, count)).has_value());
  }
  std::shared_ptr<RecordingStep> SubmitRows(std::vector<QueuedRow> rows, Submitter from = Submitter::kBusy) {
    auto step = Step();
    EXPECT_FALSE(batcher().Submit(step, std::move(rows), from).has_value());
    return step;
  }

  Limits limits_;
  testing::FakeClock clock_;
  testing::CountingObserver observer_;
  std::vector<std::unique_ptr<testing::FakeDevice>> devices_;
  std::unique_ptr<Batcher> batcher_;
};

}  // namespace sortition::service

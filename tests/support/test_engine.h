// An engine with everything around it that a test wants to hold in its hands.
#pragma once

#include <memory>
#include <utility>

#include "devices/cpu/cpu_device.h"
#include "service/engine.h"
#include "tests/support/counting_observer.h"
#include "tests/support/fake_clock.h"
#include "tests/support/fake_device.h"
#include "tests/support/recording_event_log.h"

namespace sortition::testing {

// Engine with one device: the real CPU device, or a fake that answers by the law's reference when it is told to.
class TestEngine {
 public:
  static TestEngine OnCpu(const service::Limits& limits = {}, uint32_t threads = 2, double recheck_share = 0) {
    devices::CpuDeviceOptions options;
    options.threads = threads;
    return TestEngine(limits, std::make_unique<devices::CpuDevice>(options), nullptr, recheck_share);
  }
  // `book` and `policies` are not owned and outlive the engine.
  static TestEngine OnCpuWith(service::ReceiptBook* book, service::PolicyBook* policies = nullptr) {
    return TestEngine({}, std::make_unique<devices::CpuDevice>(devices::CpuDeviceOptions{.threads = 2}), nullptr, 0,
                      book, policies);
  }
  static TestEngine OnFake(const service::Limits& limits = {}, FakeDevice::Options options = {}) {
    auto device = std::make_unique<FakeDevice>(std::move(options));
    FakeDevice* fake = device.get();
    return TestEngine(limits, std::move(device), fake);
  }

  // A test that fails half-way leaves batches held, and the engine would wait for them.
  ~TestEngine() {
    if (engine_ != nullptr && fake_ != nullptr) fake_->FinishAll();
  }
  TestEngine(TestEngine&&) = default;

  service::Engine* get() { return engine_.get(); }
  service::Engine* operator->() { return engine_.get(); }
  FakeClock& clock() { return *clock_; }
  const CountingObserver& observer() const { return *observer_; }
  const RecordingEventLog& event_log() const { return *event_log_; }
  FakeDevice& fake() { return *fake_; }

 private:
  TestEngine(const service::Limits& limits, std::unique_ptr<devices::Device> device, FakeDevice* fake,
             double recheck_share = 0, service::ReceiptBook* book = nullptr, service::PolicyBook* policies = nullptr)
      : fake_(fake) {
    service::Engine::Options options;
    options.limits = limits;
    options.devices.push_back(std::move(device));
    options.clock = clock_.get();
    options.observer = observer_.get();
    options.event_log = event_log_.get();
    options.recheck_share = recheck_share;
    options.receipts = book;
    options.policies = policies;
    engine_ = std::make_unique<service::Engine>(std::move(options));
  }

  std::unique_ptr<FakeClock> clock_ = std::make_unique<FakeClock>();
  std::unique_ptr<CountingObserver> observer_ = std::make_unique<CountingObserver>();
  std::unique_ptr<RecordingEventLog> event_log_ = std::make_unique<RecordingEventLog>();
  FakeDevice* fake_;  // owned by the engine; null on the CPU
  std::unique_ptr<service::Engine> engine_;
};

}  // namespace sortition::testing

// Replicas that take each other's checkpoints.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "devices/cpu/cpu_device.h"
#include "service/engine.h"
#include "tests/support/fake_clock.h"
#include "tests/support/session.h"

namespace sortition::service {

// A replica of the service and one stream to it.
class Replica {
 public:
  explicit Replica(std::optional<CheckpointKey> key) {
    Engine::Options options;
    options.devices.push_back(std::make_unique<devices::CpuDevice>(devices::CpuDeviceOptions{.threads = 1}));
    options.clock = &clock_;
    options.observer = &observer_;
    options.checkpoint_key = std::move(key);
    engine_ = std::make_unique<Engine>(std::move(options));
    worker_ = std::make_unique<StreamWorker>(engine_.get());
  }
  StreamWorker& worker() { return *worker_; }

 private:
  testing::FakeClock clock_;
  NullObserver observer_;
  std::unique_ptr<Engine> engine_;
  std::unique_ptr<StreamWorker> worker_;
};

inline CheckpointKey KeyOf(char byte) { return *CheckpointKey::Of(std::string(32, byte)); }

}  // namespace sortition::service

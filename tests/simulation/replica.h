// A replica of the service as a process that can die: the real engine on a device that runs when the timeline says.
#pragma once

#include <cstdint>
#include <memory>

#include "service/engine.h"
#include "service/observer.h"
#include "tests/simulation/timeline.h"
#include "tests/simulation/world.h"

namespace sortition::simulation {

// Not thread-safe. `timeline` and `tally` are not owned and outlive the replica, and no session may outlive its engine.
class Replica {
 public:
  Replica(const World& world, uint32_t index, Timeline* timeline, Tally* tally);
  ~Replica();

  bool up() const { return up_; }
  service::Engine* engine() { return engine_.get(); }

  // The process dies. Its sessions have been closed; what its device was given is dropped with it.
  void Die();
  // A new process, which knows nothing.
  void Rise();

  // Until then the device does not run, fails what it is given, or the replica speaks another version of the law.
  absl::Time stalled_until = absl::InfinitePast();
  absl::Time broken_until = absl::InfinitePast();
  absl::Time other_law_until = absl::InfinitePast();

 private:
  class SimulatedDevice;
  class TallyObserver;
  class SimulatedEntropy;

  const World& world_;
  const uint32_t index_;
  Timeline& timeline_;
  Tally& tally_;
  const std::unique_ptr<service::Observer> observer_;
  const std::unique_ptr<service::Entropy> entropy_;
  SimulatedDevice* device_ = nullptr;  // the engine's
  std::unique_ptr<service::Engine> engine_;
  uint64_t batches_ = 0;
  bool up_ = false;
};

}  // namespace sortition::simulation

// A replica of the service as a process that can die: the real engine on a device that runs at the timeline's events.
#pragma once

#include <cstdint>
#include <memory>

#include "service/engine.h"
#include "service/observer.h"
#include "service/policy/policy_book.h"
#include "tests/simulation/policies.h"
#include "tests/simulation/timeline.h"
#include "tests/simulation/world.h"

namespace sortition::simulation {

// Not thread-safe. `policies`, `timeline` and `tally` are not owned and outlive the replica, and no session may outlive
// its engine.
class Replica {
 public:
  Replica(const World& world, uint32_t index, const PolicyFile& policies, Timeline* timeline, Tally* tally);
  ~Replica();

  bool up() const { return up_; }
  service::Engine* engine() { return engine_.get(); }

  // The process dies, and its device's batches with it. Its sessions have been closed.
  void Die();
  // Starts a new process without state. False if it cannot start, because its file of policies has a mistake.
  bool Rise();
  // Looks at the file of policies.
  void Follow();

  // Until these times the device does not run, fails its batches, or the replica speaks another version of the law.
  absl::Time stalled_until = absl::InfinitePast();
  absl::Time broken_until = absl::InfinitePast();
  absl::Time other_law_until = absl::InfinitePast();

 private:
  class SimulatedDevice;
  class TallyObserver;
  class SimulatedEntropy;
  class TallyLog;

  const World& world_;
  const uint32_t index_;
  const PolicyFile& policy_file_;
  Timeline& timeline_;
  Tally& tally_;
  const std::unique_ptr<service::Observer> observer_;
  const std::unique_ptr<service::Entropy> entropy_;
  const std::unique_ptr<service::EventLog> event_log_;
  std::unique_ptr<service::PolicyBook> book_;
  uint64_t looks_ = 0;
  SimulatedDevice* device_ = nullptr;  // the engine's
  std::unique_ptr<service::Engine> engine_;
  uint64_t batches_ = 0;
  bool up_ = false;
};

}  // namespace sortition::simulation

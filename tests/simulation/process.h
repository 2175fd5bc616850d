// One process of a simulated worker: the client's real state machine, its timer, and ended steps that are not yet
// reported.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "client/cpp/stream_state.h"
#include "tests/simulation/network.h"
#include "tests/simulation/timeline.h"

namespace sortition::simulation {

// Not thread-safe. Ends by Stop, or with its last reference.
class Process final : public client::StreamEvents, public std::enable_shared_from_this<Process> {
 public:
  struct Identity {
    std::string session;
    uint32_t index = 0;  // in the network
    uint64_t jitter_seed = 0;
    uint64_t generation = 0;  // number of the process among its worker's processes, from 1
  };
  // Nothing given to it is owned; all of it outlives the process.
  static std::shared_ptr<Process> Start(const client::ClientOptions& options, const Identity& identity,
                                        Network* network, Timeline* timeline);
  ~Process() override { Stop(); }

  uint64_t generation() const { return generation_; }

  // Runs `change` on the state, then reports the steps that it ended and sets the timer.
  template <typename Change>
  void Update(Change change) {
    if (stopped_) return;
    change(*state_, timeline_.Now());
    Settle();
  }
  // Dies: its steps in flight are never reported.
  void Stop();

  void OnResponse(uint64_t stream, const v1::StreamResponse& response) override;
  void OnEnded(uint64_t stream, absl::Status status) override;

 private:
  Process(uint64_t generation, Timeline* timeline) : timeline_(*timeline), generation_(generation) {}
  void Begin(const client::ClientOptions& options, const Identity& identity, Network* network);
  void Settle();
  void Tell();

  Timeline& timeline_;
  const uint64_t generation_;
  std::vector<std::shared_ptr<client::PendingBatch>> released_;
  std::optional<client::StreamState> state_;
  absl::Time wake_at_ = absl::InfiniteFuture();
  bool stopped_ = false;
};

}  // namespace sortition::simulation

// A world of servers and streams in which everything that can happen to a message happens by a seeded draw.
//
// The client's state machine runs against real sessions of the service. Nothing runs by itself: a step of the world
// delivers one message, runs one device batch, breaks a stream, kills a server, repeats an answer or moves the time.
// One seed is one history.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <random>
#include <vector>

#include "absl/time/time.h"
#include "client/cpp/stream_state.h"
#include "client/cpp/transport.h"
#include "devices/device.h"
#include "service/clock.h"
#include "service/engine.h"
#include "service/stream/session.h"

namespace sortition::testing {

// Keeps batches until told to run one; samples by the law's reference.
class ManualDevice final : public devices::Device {
 public:
  const devices::DeviceDescription& description() const override { return description_; }
  void Submit(std::vector<devices::DeviceRow> rows, Done done) override {
    batches_.push_back({std::move(rows), std::move(done)});
  }
  bool idle() const { return batches_.empty(); }
  void RunOne();

 private:
  struct Batch {
    std::vector<devices::DeviceRow> rows;
    Done done;
  };
  const devices::DeviceDescription description_{
      .name = "manual", .kind = "cpu", .hardware = "none", .max_batch_rows = 4, .batches_in_flight = 2};
  std::deque<Batch> batches_;
};

class LossyWorld final : public client::Connector {
 public:
  LossyWorld(size_t servers, const service::Limits& limits, uint64_t seed);
  ~LossyWorld() override;

  // The state that the world's events go to; before the first step.
  void Attach(client::StreamState* state) { state_ = state; }

  // Does one thing. Without `faults` nothing is lost any more, and whatever is under way arrives.
  void Step(bool faults);

  absl::Time now() const { return clock_.time; }
  std::mt19937_64& random() { return random_; }

  // How often each fault has happened; a test without them proves nothing.
  struct Faults {
    uint64_t broken_streams = 0;
    uint64_t killed_servers = 0;
    uint64_t repeated_answers = 0;
    uint64_t drained_streams = 0;
    uint64_t lost_answers = 0;
  };
  const Faults& faults() const { return faults_; }

  std::shared_ptr<client::Transport> Start(size_t target, uint64_t stream, client::StreamEvents* events) override;

 private:
  struct WorldClock final : service::Clock {
    absl::Time time = absl::UnixEpoch() + absl::Hours(1);
    absl::Time Now() const override { return time; }
  };
  struct Server {
    ManualDevice* device = nullptr;
    std::unique_ptr<service::Engine> engine;
    bool up = true;
  };
  struct Stream;
  class StreamSink;
  class WorldTransport;

  std::unique_ptr<service::Engine> MakeEngine(ManualDevice** device);
  void Kill(Server* server);
  void EndAtServer(Stream* stream);
  void EndAtClient(Stream* stream);
  bool DeliverRequest(Stream* stream);
  bool DeliverAnswer(Stream* stream, bool faults);
  void Reap();

  const service::Limits limits_;
  std::mt19937_64 random_;
  WorldClock clock_;
  service::NullObserver observer_;
  client::StreamState* state_ = nullptr;
  std::vector<Server> servers_;
  std::vector<std::shared_ptr<Stream>> streams_;
  Faults faults_;
};

}  // namespace sortition::testing

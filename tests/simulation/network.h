// Streams between workers and replicas: messages take time and keep their order within a stream, and one end may be
// gone before the other knows it.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "client/cpp/transport/transport.h"
#include "service/stream/session.h"
#include "tests/simulation/draw.h"
#include "tests/simulation/replica.h"
#include "tests/simulation/timeline.h"
#include "tests/simulation/world.h"

namespace sortition::simulation {

// Writes a line of the run's log, if there is a log.
using Log = std::function<void(const std::function<std::string()>& line)>;

// Not thread-safe. Nothing given to it is owned; all of it outlives the network.
class Network {
 public:
  // `fail` gets a description of a defect.
  Network(const World& world, Timeline* timeline, std::vector<std::unique_ptr<Replica>>* replicas, Tally* tally,
          Log log, std::function<void(std::string)> fail);
  ~Network();

  // Returns the connector of one process of `worker`. `worker` is a rank of the world: each rank is a process. The
  // streams' events go to `events` while it lives.
  std::unique_ptr<client::Connector> ConnectorOf(uint32_t worker, std::weak_ptr<client::StreamEvents> events);

  // Cuts all present streams of a worker. `length` as in Fault.
  void Cut(uint32_t worker, absl::Duration length);
  void Ghost(uint32_t worker, absl::Duration length);
  void Deafen(uint32_t worker, absl::Duration length);
  // Loses all later answers without telling the worker.
  void Silence(uint32_t worker);
  void Repeat(uint32_t worker, absl::Duration length);

  // Ends all present streams of a replica, whose process has died (Break), or drains and ends them after `grace`.
  void Break(uint32_t replica);
  void Drain(uint32_t replica, v1::DrainingNotice::Cause cause, absl::Duration grace);

 private:
  struct Connection;
  class ConnectionSink;
  class ConnectionTransport;
  class WorkerConnector;

  std::shared_ptr<Connection> Connect(uint32_t worker, size_t target, uint64_t number,
                                      std::weak_ptr<client::StreamEvents> events);
  void SendRequest(const std::shared_ptr<Connection>& connection, client::OutgoingMessage message);
  void SendAnswer(const std::shared_ptr<Connection>& connection, v1::StreamResponse response, service::Credit credit);
  void CountLost(const v1::StreamResponse& response);
  void Arrive(Connection* connection, const v1::StreamResponse& response);
  void Pump(Connection* connection);
  static service::Frame Decode(std::vector<std::byte> bytes);
  void Deliver(Connection* connection, const std::vector<std::byte>& bytes);
  void DeliverClose(Connection* connection, service::Frame frame);
  void CountKept(const Connection& connection, const v1::Step& step);
  void Spoil(Connection* connection, v1::StreamRequest* request);
  void DrainOne(const std::shared_ptr<Connection>& connection, v1::DrainingNotice::Cause cause, absl::Duration grace);
  void FinishIfDrained(const std::shared_ptr<Connection>& connection);
  void EndAtReplica(Connection* connection);
  void EndAtWorker(const std::shared_ptr<Connection>& connection, absl::Duration delay, absl::Status status);
  void LeaveAtWorker(const std::shared_ptr<Connection>& connection);
  template <typename Apply>
  void OfWorker(uint32_t worker, Apply apply);
  absl::Duration Latency(Choice choice, const Connection& connection, uint64_t message) const;

  const World& world_;
  Timeline& timeline_;
  std::vector<std::unique_ptr<Replica>>& replicas_;
  Tally& tally_;
  const Log log_;
  const std::function<void(std::string)> fail_;
  std::vector<std::shared_ptr<Connection>> connections_;
  std::vector<absl::Time> repeat_until_;
  uint64_t connected_ = 0;
};

}  // namespace sortition::simulation

// The standard health check of gRPC, on a queue of this server: gRPC's own implementation would wait for sockets in
// another thread (call_queue.h).
#pragma once

#include <grpcpp/server_builder.h>

#include <atomic>
#include <string>

#include "absl/time/time.h"
#include "grpc/health/v1/health.grpc.pb.h"
#include "service/calls/call_queue.h"
#include "service/calls/interval_watch.h"
#include "service/limits.h"

namespace sortition::server {

// Thread-safe. One for each gRPC server.
class HealthService {
 public:
  // `serving` is not owned and outlives the service. It is the state of the server and of each of its services.
  HealthService(const service::Limits& limits, const std::atomic<bool>* serving);

  void Register(grpc::ServerBuilder* builder) { builder->RegisterService(&service_); }
  // Called when the server has been started.
  void Start(CallQueue* queue);
  // Sends changes to the calls that watch, and ends calls whose answer is not read. Called by one thread.
  void Tick(absl::Time now);

 private:
  using Request = grpc::health::v1::HealthCheckRequest;
  using Response = grpc::health::v1::HealthCheckResponse;
  class ServiceWatch;

  Response::ServingStatus StatusOf(const std::string& service) const;
  Response::ServingStatus StatusOfKnown() const;

  const std::atomic<bool>& serving_;
  const absl::Duration stalled_write_;
  bool was_serving_;  // at the last tick
  Watchers watchers_;
  grpc::health::v1::Health::AsyncService service_;
  UnaryMethod<Request, Response> check_;
  WatchMethod<Request, Response> watch_;
};

}  // namespace sortition::server

// The standard health check of gRPC on a queue of ours: gRPC's own waits for sockets in a thread of its own
// (call_queue.h).
#pragma once

#include <grpcpp/server_builder.h>

#include <atomic>
#include <string>

#include "absl/time/time.h"
#include "grpc/health/v1/health.grpc.pb.h"
#include "service/server/call_queue.h"

namespace sortition::server {

// Thread-safe. One for each gRPC server.
class HealthService {
 public:
  // `serving` is not owned and outlives the service: what is said of the server and of its services from one tick on.
  explicit HealthService(const std::atomic<bool>* serving);

  void Register(grpc::ServerBuilder* builder) { builder->RegisterService(&service_); }
  // The server has been started.
  void Start(CallQueue* queue);
  // Tells those who watch what has changed.
  void Tick(absl::Time now) { watch_.Tick(now); }

 private:
  using Request = grpc::health::v1::HealthCheckRequest;
  using Response = grpc::health::v1::HealthCheckResponse;
  class ServiceWatch;

  Response::ServingStatus StatusOf(const std::string& service) const;

  const std::atomic<bool>& serving_;
  grpc::health::v1::Health::AsyncService service_;
  UnaryMethod<Request, Response> check_;
  WatchMethod<Request, Response> watch_;
};

}  // namespace sortition::server

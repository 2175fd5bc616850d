// InformationService: describes this server, its devices, limits and parameters, and streams its counters.
#pragma once

#include <grpcpp/server_builder.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <variant>

#include "absl/time/time.h"
#include "service/calls/call_queue.h"
#include "service/calls/interval_watch.h"
#include "service/engine.h"
#include "service/net/authorization.h"
#include "service/process/config.h"
#include "sortition/v1/information.grpc.pb.h"

namespace sortition::server {

// Thread-safe. Does not block.
class InformationService {
 public:
  // `authorization` and `engine` are not owned and outlive the service; `streams` returns the number of open streams.
  InformationService(const Config& config, const Authorization* authorization, service::Engine* engine,
                     std::function<uint32_t()> streams);

  void Register(grpc::ServerBuilder* builder) { builder->RegisterService(&service_); }
  // Called when the server has been started.
  void Start(CallQueue* queue);
  // Sends counters to the calls whose interval has passed, and ends calls whose answer is not read.
  void Tick(absl::Time now) {
    get_server_information_.Tick(now, engine_.limits().stalled_write);
    watch_counters_.Tick(now);
  }

 private:
  // Returns the caller's tenant.
  std::variant<std::string, service::Refusal> Authorize(const grpc::ServerContextBase& call) const;
  grpc::Status Describe(const grpc::ServerContext& call, const v1::GetServerInformationRequest& request,
                        v1::ServerInformation* response) const;
  std::variant<grpc::Status, std::unique_ptr<Watch<v1::Counters>>> BeginWatch(const grpc::ServerContext& call,
                                                                              const v1::WatchCountersRequest& request);
  v1::Counters ReadCounters() const;

  const Authorization& authorization_;
  service::Engine& engine_;
  const std::function<uint32_t()> streams_;
  const absl::Time started_;
  Watchers watchers_;
  v1::InformationService::AsyncService service_;
  UnaryMethod<v1::GetServerInformationRequest, v1::ServerInformation> get_server_information_;
  WatchMethod<v1::WatchCountersRequest, v1::Counters> watch_counters_;
};

}  // namespace sortition::server

// InformationService: what this server is and can do, and its counters as a stream.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <optional>

#include "absl/time/time.h"
#include "service/engine.h"
#include "service/server/authorization.h"
#include "service/server/config.h"
#include "sortition/v1/information.grpc.pb.h"

namespace sortition::server {

// Thread-safe. Does not block: calls run on gRPC's own threads.
class InformationService final : public v1::InformationService::CallbackService {
 public:
  // `authorization` and `engine` are not owned and outlive the service; `streams` says how many streams are open.
  InformationService(const Config& config, const Authorization* authorization, service::Engine* engine,
                     std::function<uint32_t()> streams);

  grpc::ServerUnaryReactor* GetServerInformation(grpc::CallbackServerContext* context,
                                                 const v1::GetServerInformationRequest* request,
                                                 v1::ServerInformation* response) override;
  grpc::ServerWriteReactor<v1::Counters>* WatchCounters(grpc::CallbackServerContext* context,
                                                        const v1::WatchCountersRequest* request) override;

 private:
  class Watcher;

  std::optional<service::Refusal> Authorize(const grpc::ServerContextBase& call) const;
  v1::Counters ReadCounters() const;

  const Config config_;
  const Authorization& authorization_;
  service::Engine& engine_;
  const std::function<uint32_t()> streams_;
  const absl::Time started_;
  std::atomic<uint32_t> watchers_ = 0;
};

}  // namespace sortition::server

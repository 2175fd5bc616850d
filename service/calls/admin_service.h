// AdminService: operators' actions on a running server. Served on a separate listener.
#pragma once

#include <functional>
#include <string>

#include "service/engine.h"
#include "service/log/log.h"
#include "service/net/authorization.h"
#include "sortition/v1/admin.grpc.pb.h"

namespace sortition::server {

// Thread-safe. Calls run on gRPC's own threads and may block for as long as a device's self-test takes. Every
// action is logged with the operator's identity.
class AdminService final : public v1::AdminService::Service {
 public:
  // Nothing is owned; all of it outlives the service. `stop` ends the process as SIGTERM does; it returns at once.
  AdminService(const Authorization* authorization, service::Engine* engine, Log* log, std::function<void()> stop);

  grpc::Status Drain(grpc::ServerContext* context, const v1::DrainRequest* request,
                     v1::DrainResponse* response) override;
  grpc::Status SelfTestDevice(grpc::ServerContext* context, const v1::SelfTestDeviceRequest* request,
                              v1::SelfTestDeviceResponse* response) override;
  grpc::Status QuarantineDevice(grpc::ServerContext* context, const v1::QuarantineDeviceRequest* request,
                                v1::QuarantineDeviceResponse* response) override;
  grpc::Status SetLogLevel(grpc::ServerContext* context, const v1::SetLogLevelRequest* request,
                           v1::SetLogLevelResponse* response) override;
  grpc::Status ListClients(grpc::ServerContext* context, const v1::ListClientsRequest* request,
                           v1::ListClientsResponse* response) override;
  grpc::Status ForgetSequences(grpc::ServerContext* context, const v1::ForgetSequencesRequest* request,
                               v1::ForgetSequencesResponse* response) override;

 private:
  // Returns OK and logs `action` on `target` if the caller has the role `admin` and the request has no unknown field.
  // `target` is the value of the request's `field`.
  grpc::Status Begin(const grpc::ServerContext& context, const google::protobuf::Message& request, const char* action,
                     const char* field, const std::string& target);
  grpc::Status Refuse(const service::Refusal& refusal);

  const Authorization& authorization_;
  service::Engine& engine_;
  Log& log_;
  const std::function<void()> stop_;
};

}  // namespace sortition::server

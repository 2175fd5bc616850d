// sortitionctl health: the standard gRPC health check (grpc.health.v1).
#include <cstdio>
#include <string>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "client/cli/command.h"
#include "grpc/health/v1/health.grpc.pb.h"
#include "grpcpp/client_context.h"

namespace sortition::cli {
namespace {

using grpc::health::v1::HealthCheckRequest;
using grpc::health::v1::HealthCheckResponse;

constexpr const char* kServices[] = {"", "sortition.v1.SamplingService", "sortition.v1.InformationService"};

}  // namespace

Outcome Health() {
  const auto channel = MakeChannel();
  if (!channel.ok()) return Fail(channel.status());
  const auto stub = grpc::health::v1::Health::NewStub(*channel);
  bool all_serve = true;
  for (const std::string service : kServices) {
    grpc::ClientContext context;
    context.set_deadline(absl::ToChronoTime(absl::Now() + Timeout()));
    HealthCheckRequest request;
    request.set_service(service);
    HealthCheckResponse response;
    const grpc::Status status = stub->Check(&context, request, &response);
    if (!status.ok()) return Fail(status);
    all_serve = all_serve && response.status() == HealthCheckResponse::SERVING;
    std::printf("%-36s %s\n", service.empty() ? "server" : service.c_str(),
                HealthCheckResponse::ServingStatus_Name(response.status()).c_str());
  }
  return all_serve ? Outcome::kDone : Outcome::kRefused;
}

}  // namespace sortition::cli

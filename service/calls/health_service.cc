// Answers of the health check.
#include "service/calls/health_service.h"

#include <algorithm>
#include <iterator>
#include <memory>
#include <optional>
#include <string_view>
#include <utility>

namespace sortition::server {
namespace {

// The first is the server as a whole.
constexpr std::string_view kServices[] = {"", "sortition.v1.SamplingService", "sortition.v1.InformationService"};

}  // namespace

class HealthService::ServiceWatch final : public Watch<Response> {
 public:
  ServiceWatch(const HealthService* health, std::string service) : health_(*health), service_(std::move(service)) {}

  std::optional<Response> Next(absl::Time) override {
    const Response::ServingStatus now = health_.StatusOf(service_);
    if (now == said_) return std::nullopt;
    said_ = now;
    Response response;
    response.set_status(now);
    return response;
  }

 private:
  const HealthService& health_;
  const std::string service_;
  Response::ServingStatus said_ = Response::UNKNOWN;  // never sent
};

HealthService::HealthService(const std::atomic<bool>* serving)
    : serving_(*serving),
      check_([this](auto... call) { service_.RequestCheck(call...); },
             [this](const grpc::ServerContext&, const Request& request, Response* response) {
               response->set_status(StatusOf(request.service()));
               if (response->status() != Response::SERVICE_UNKNOWN) return grpc::Status::OK;
               return grpc::Status(grpc::StatusCode::NOT_FOUND, "service name unknown");
             }),
      watch_([this](auto... call) { service_.RequestWatch(call...); },
             [this](const grpc::ServerContext&, const Request& request) {
               return std::make_unique<ServiceWatch>(this, request.service());
             }) {}

void HealthService::Start(CallQueue* queue) {
  check_.Start(queue);
  watch_.Start(queue);
}

HealthService::Response::ServingStatus HealthService::StatusOf(const std::string& service) const {
  if (std::find(std::begin(kServices), std::end(kServices), service) == std::end(kServices)) {
    return Response::SERVICE_UNKNOWN;
  }
  return serving_.load(std::memory_order_acquire) ? Response::SERVING : Response::NOT_SERVING;
}

}  // namespace sortition::server

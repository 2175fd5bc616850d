// Answers of the health check.
#include "service/calls/health_service.h"

#include <algorithm>
#include <iterator>
#include <memory>
#include <optional>
#include <string_view>
#include <utility>
#include <variant>

#include "service/calls/status_details.h"
#include "service/refusal.h"

namespace sortition::server {
namespace {

// The first is the server as a whole.
constexpr std::string_view kServices[] = {"", "sortition.v1.SamplingService", "sortition.v1.InformationService"};

}  // namespace

class HealthService::ServiceWatch final : public Watch<Response> {
 public:
  // Keeps no name, which may be long.
  ServiceWatch(const HealthService* health, Watchers::Place place, bool is_known)
      : health_(*health), place_(std::move(place)), is_known_(is_known) {}

  std::optional<Response> Next(absl::Time) override {
    const Response::ServingStatus now = status();
    if (now == said_) return std::nullopt;
    said_ = now;
    Response response;
    response.set_status(now);
    return response;
  }
  absl::Time due() const override { return status() == said_ ? absl::InfiniteFuture() : absl::InfinitePast(); }

 private:
  Response::ServingStatus status() const { return is_known_ ? health_.StatusOfKnown() : Response::SERVICE_UNKNOWN; }

  const HealthService& health_;
  const Watchers::Place place_;
  const bool is_known_;
  Response::ServingStatus said_ = Response::UNKNOWN;  // never sent
};

HealthService::HealthService(const service::Limits& limits, const std::atomic<bool>* serving)
    : serving_(*serving),
      stalled_write_(limits.stalled_write),
      was_serving_(serving_),
      watchers_(limits),
      check_([this](auto... call) { service_.RequestCheck(call...); },
             [this](const grpc::ServerContext&, const Request& request, Response* response) {
               response->set_status(StatusOf(request.service()));
               if (response->status() != Response::SERVICE_UNKNOWN) return grpc::Status::OK;
               return grpc::Status(grpc::StatusCode::NOT_FOUND, "service name unknown");
             }),
      watch_([this](auto... call) { service_.RequestWatch(call...); },
             [this](const grpc::ServerContext& call,
                    const Request& request) -> std::variant<grpc::Status, std::unique_ptr<Watch<Response>>> {
               auto place = watchers_.Enter(call.peer());
               if (const auto* refusal = std::get_if<service::Refusal>(&place)) return RefusedStatus(*refusal);
               return std::make_unique<ServiceWatch>(this, std::get<Watchers::Place>(std::move(place)),
                                                     StatusOf(request.service()) != Response::SERVICE_UNKNOWN);
             }) {}

void HealthService::Start(CallQueue* queue) {
  check_.Start(queue);
  watch_.Start(queue);
}

void HealthService::Tick(absl::Time now) {
  check_.Tick(now, stalled_write_);
  const bool serving = serving_.load(std::memory_order_acquire);
  if (std::exchange(was_serving_, serving) == serving) {
    watch_.Tick(now);
  } else {
    watch_.TickAll(now);
  }
}

HealthService::Response::ServingStatus HealthService::StatusOf(const std::string& service) const {
  if (std::find(std::begin(kServices), std::end(kServices), service) == std::end(kServices)) {
    return Response::SERVICE_UNKNOWN;
  }
  return StatusOfKnown();
}

HealthService::Response::ServingStatus HealthService::StatusOfKnown() const {
  return serving_.load(std::memory_order_acquire) ? Response::SERVING : Response::NOT_SERVING;
}

}  // namespace sortition::server

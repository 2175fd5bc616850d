// Answers of InformationService.
#include "service/server/information_service.h"

#include <grpcpp/alarm.h>
#include <grpcpp/grpcpp.h>

#include <optional>
#include <string>
#include <utility>
#include <variant>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "kernels/law/version.h"
#include "service/limits.h"
#include "service/request/parameter_table.h"
#include "service/request/strictness.h"
#include "service/server/credentials.h"
#include "service/server/status_details.h"
#include "service/version.h"

namespace sortition::server {
namespace {

using service::Reason;
using service::Refusal;

constexpr absl::Duration kShortestInterval = absl::Milliseconds(100);
constexpr absl::Duration kLongestInterval = absl::Seconds(60);
constexpr absl::Duration kDefaultInterval = absl::Seconds(1);

void AddLimit(const service::LimitDescription& description, v1::ServerInformation* information) {
  v1::Limit* limit = information->add_limits();
  limit->set_name(std::string(description.name));
  limit->set_value(description.value);
  limit->set_unit(std::string(description.unit));
  limit->set_description(std::string(description.description));
}

void AddMissing(const service::MissingDevice& device, v1::ServerInformation* information) {
  v1::DeviceInformation* missing = information->add_devices();
  missing->set_name(device.name);
  missing->set_kind(device.kind);
  missing->set_hardware(device.hardware);
  missing->set_state(std::string(service::kMissingState));
  missing->set_reason(device.reason);
}

void AddParameter(const service::ParameterDescription& description, v1::ServerInformation* information) {
  v1::ParameterInformation* parameter = information->add_parameters();
  parameter->set_name(std::string(description.name));
  parameter->set_range(std::string(description.range));
  parameter->set_default_value(std::string(description.default_value));
  parameter->set_scope(std::string(description.scope));
  parameter->set_description(std::string(description.description));
  parameter->set_implemented(description.implemented);
}

std::variant<absl::Duration, Refusal> ParseInterval(const v1::WatchCountersRequest& request) {
  if (std::optional<Refusal> unknown = service::FindUnknown(request, "")) return *unknown;
  if (!request.has_interval()) return kDefaultInterval;
  const absl::Duration interval =
      absl::Seconds(request.interval().seconds()) + absl::Nanoseconds(request.interval().nanos());
  if (interval >= kShortestInterval && interval <= kLongestInterval) return interval;
  return Refusal{Reason::kOutOfRange, "interval",
                 absl::StrCat(absl::FormatDuration(kShortestInterval), "..", absl::FormatDuration(kLongestInterval)),
                 absl::StrCat(absl::FormatDuration(interval), " is out of range")};
}

// Ends at once with a status.
class Refuser final : public grpc::ServerWriteReactor<v1::Counters> {
 public:
  explicit Refuser(const grpc::Status& status) { Finish(status); }
  void OnDone() override { delete this; }
};

}  // namespace

// One call of WatchCounters: a write, a pause of one interval, and again, until the client goes. Deletes itself when
// done.
class InformationService::Watcher final : public grpc::ServerWriteReactor<v1::Counters> {
 public:
  Watcher(InformationService* service, absl::Duration interval) : service_(*service), interval_(interval) {
    absl::MutexLock lock(&mutex_);
    Write();
  }
  ~Watcher() override { service_.watchers_.fetch_sub(1); }

  void OnWriteDone(bool ok) override {
    {
      absl::MutexLock lock(&mutex_);
      if (ok && !cancelled_) {
        pausing_ = true;
        alarm_.Set(std::chrono::system_clock::now() + absl::ToChronoMicroseconds(interval_),
                   [this](bool) { OnPauseOver(); });
        return;
      }
    }
    End();
  }

  void OnCancel() override {
    bool pausing;
    {
      absl::MutexLock lock(&mutex_);
      cancelled_ = true;
      pausing = pausing_;
    }
    if (pausing) alarm_.Cancel();
  }

  void OnDone() override { delete this; }

 private:
  void OnPauseOver() {
    {
      absl::MutexLock lock(&mutex_);
      pausing_ = false;
      if (!cancelled_) return Write();
    }
    End();
  }

  void Write() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    counters_ = service_.ReadCounters();
    StartWrite(&counters_);
  }
  // The watcher may be gone when Finish returns, so no lock of its own is held.
  void End() ABSL_LOCKS_EXCLUDED(mutex_) { Finish(grpc::Status::CANCELLED); }

  InformationService& service_;
  const absl::Duration interval_;
  absl::Mutex mutex_;
  grpc::Alarm alarm_;
  v1::Counters counters_ ABSL_GUARDED_BY(mutex_);
  bool pausing_ ABSL_GUARDED_BY(mutex_) = false;
  bool cancelled_ ABSL_GUARDED_BY(mutex_) = false;
};

InformationService::InformationService(const Config& config, const Authorization* authorization,
                                       service::Engine* engine, std::function<uint32_t()> streams)
    : config_(config),
      authorization_(*authorization),
      engine_(*engine),
      streams_(std::move(streams)),
      started_(engine->clock().Now()) {}

std::optional<Refusal> InformationService::Authorize(const grpc::ServerContextBase& call) const {
  auto authorized = authorization_.Authorize(EvidenceOf(call), kAnyRole);
  auto* refusal = std::get_if<Refusal>(&authorized);
  if (refusal == nullptr) return std::nullopt;
  engine_.observer().Refused(refusal->reason, 1);
  return std::move(*refusal);
}

grpc::ServerUnaryReactor* InformationService::GetServerInformation(grpc::CallbackServerContext* context,
                                                                   const v1::GetServerInformationRequest* request,
                                                                   v1::ServerInformation* response) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  std::optional<Refusal> refusal = Authorize(*context);
  if (!refusal) refusal = service::FindUnknown(*request, "");
  if (refusal) {
    reactor->Finish(RefusedStatus(*refusal));
    return reactor;
  }
  response->set_version(std::string(service::Version()));
  response->add_contracts("sortition.v1");
  response->add_law_versions(law::kLawVersion);
  for (const service::DeviceStatus& status : engine_.batcher().device_statuses()) {
    const devices::DeviceDescription& description = status.device->description();
    v1::DeviceInformation* information = response->add_devices();
    information->set_name(description.name);
    information->set_kind(description.kind);
    information->set_hardware(description.hardware);
    information->set_max_batch_rows(description.max_batch_rows);
    information->set_state(std::string(service::DeviceStateName(status.state)));
    information->set_reason(status.reason);
    information->set_max_vocabulary(description.max_vocabulary);
    information->set_launch_nanoseconds(status.costs.launch * 1e9);
    information->set_row_nanoseconds(status.costs.row * 1e9);
    information->set_byte_nanoseconds(status.costs.byte * 1e9);
  }
  for (const service::MissingDevice& device : engine_.missing_devices()) AddMissing(device, response);
  for (const service::LimitDescription& limit : service::DescribeLimits(engine_.limits())) AddLimit(limit, response);
  AddLimit({"max_received_bytes", config_.max_received_bytes, "bytes", "of messages held, all streams together"},
           response);
  AddLimit({"max_watchers", config_.max_watchers, "calls", "of WatchCounters at once"}, response);
  for (const service::ParameterDescription& parameter : service::Parameters()) AddParameter(parameter, response);
  response->set_grpc_version(grpc::Version());
  reactor->Finish(grpc::Status::OK);
  return reactor;
}

grpc::ServerWriteReactor<v1::Counters>* InformationService::WatchCounters(grpc::CallbackServerContext* context,
                                                                          const v1::WatchCountersRequest* request) {
  if (const std::optional<Refusal> refusal = Authorize(*context)) return new Refuser(RefusedStatus(*refusal));
  const std::variant<absl::Duration, Refusal> interval = ParseInterval(*request);
  if (const auto* refusal = std::get_if<Refusal>(&interval)) return new Refuser(RefusedStatus(*refusal));
  if (watchers_.fetch_add(1) >= config_.max_watchers) {
    watchers_.fetch_sub(1);
    return new Refuser(
        RefusedStatus({Reason::kOverloaded, "watcher", absl::StrCat("max_watchers ", config_.max_watchers),
                       "too many calls watch the counters", absl::Seconds(1)}));
  }
  return new Watcher(this, std::get<absl::Duration>(interval));
}

v1::Counters InformationService::ReadCounters() const {
  const service::Observer::Totals totals = engine_.observer().totals();
  v1::Counters counters;
  counters.set_steps(totals.steps);
  counters.set_rows(totals.rows);
  counters.set_tokens(totals.tokens);
  counters.set_errors(totals.errors);
  counters.set_batches(totals.batches);
  counters.set_streams(streams_());
  counters.set_sequences(engine_.sequences().live_sequences());
  counters.set_state_bytes(engine_.sequences().state_bytes());
  counters.set_queued_rows(engine_.batcher().queued_rows());
  const int64_t uptime = absl::ToInt64Nanoseconds(engine_.clock().Now() - started_);
  counters.mutable_uptime()->set_seconds(uptime / 1'000'000'000);
  counters.mutable_uptime()->set_nanos(static_cast<int32_t>(uptime % 1'000'000'000));
  return counters;
}

}  // namespace sortition::server

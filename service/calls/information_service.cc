// Answers of InformationService.
#include "service/calls/information_service.h"

#include <grpcpp/grpcpp.h>

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "kernels/law/version.h"
#include "service/calls/status_details.h"
#include "service/limits.h"
#include "service/net/credentials.h"
#include "service/net/http2_guard.h"
#include "service/policy/policy_book.h"
#include "service/version.h"
#include "service/wire/parameter_table.h"
#include "service/wire/strictness.h"

namespace sortition::server {
namespace {

using service::Reason;
using service::Refusal;

void AddLimit(const service::LimitDescription& description, v1::ServerInformation* information) {
  v1::Limit* limit = information->add_limits();
  limit->set_name(std::string(description.name));
  limit->set_value(description.value);
  limit->set_unit(std::string(description.unit));
  limit->set_description(std::string(description.description));
}

// KIND_UNSPECIFIED if the contract has no such kind.
v1::DeviceInformation::Kind ToKind(std::string_view kind) {
  if (kind == "cpu") return v1::DeviceInformation::KIND_CPU;
  if (kind == "vulkan") return v1::DeviceInformation::KIND_VULKAN;
  if (kind == "cuda") return v1::DeviceInformation::KIND_CUDA;
  return v1::DeviceInformation::KIND_UNSPECIFIED;
}

v1::DeviceInformation::State ToState(service::DeviceState state) {
  switch (state) {
    case service::DeviceState::kSelfTest:
      return v1::DeviceInformation::STATE_SELF_TEST;
    case service::DeviceState::kServing:
      return v1::DeviceInformation::STATE_SERVING;
    case service::DeviceState::kQuarantined:
      return v1::DeviceInformation::STATE_QUARANTINED;
  }
  return v1::DeviceInformation::STATE_UNSPECIFIED;
}

void AddMissing(const service::MissingDevice& device, v1::ServerInformation* information) {
  v1::DeviceInformation* missing = information->add_devices();
  missing->set_name(device.name);
  missing->set_kind(ToKind(device.kind));
  missing->set_hardware(device.hardware);
  missing->set_state(v1::DeviceInformation::STATE_MISSING);
  missing->set_reason(device.reason);
}

void AddParameter(const service::ParameterDescription& description, v1::ServerInformation* information) {
  v1::ParameterInformation* parameter = information->add_parameters();
  parameter->set_name(std::string(description.name));
  parameter->set_range(std::string(description.range));
  parameter->set_default_value(std::string(description.default_value));
  parameter->set_scope(description.is_per_step ? v1::ParameterInformation::SCOPE_STEP
                                               : v1::ParameterInformation::SCOPE_SEQUENCE);
  parameter->set_description(std::string(description.description));
  parameter->set_in_phases(description.in_phases);
}

// Adds the tenant's policy. The path of its keys is the operator's own.
void AddPolicy(const service::PolicyBook& book, const std::string& tenant, v1::ServerInformation* information) {
  const auto policy = book.Of(tenant);
  if (policy == nullptr) return;
  *information->mutable_policy() = policy->message;
  if (policy->message.has_watermark()) information->mutable_policy()->mutable_watermark()->clear_keys();
  for (const service::MarkKey& key : policy->keys) information->add_watermark_key_ids(key.id);
}

}  // namespace

InformationService::InformationService(const Config& config, const Authorization* authorization,
                                       service::Engine* engine, std::function<uint32_t()> streams)
    : authorization_(*authorization),
      engine_(*engine),
      streams_(std::move(streams)),
      started_(engine->clock().Now()),
      watchers_(config.limits),
      get_server_information_([this](auto... call) { service_.RequestGetServerInformation(call...); },
                              [this](const grpc::ServerContext& call, const v1::GetServerInformationRequest& request,
                                     v1::ServerInformation* response) { return Describe(call, request, response); }),
      watch_counters_([this](auto... call) { service_.RequestWatchCounters(call...); },
                      [this](const grpc::ServerContext& call, const v1::WatchCountersRequest& request) {
                        return BeginWatch(call, request);
                      }) {}

void InformationService::Start(CallQueue* queue) {
  get_server_information_.Start(queue);
  watch_counters_.Start(queue);
}

std::variant<std::string, Refusal> InformationService::Authorize(const grpc::ServerContextBase& call) const {
  auto authorized = authorization_.Authorize(EvidenceOf(call), kAnyRole);
  if (const auto* refusal = std::get_if<Refusal>(&authorized)) {
    engine_.observer().Refused(refusal->reason, refusal->field, 1);
  } else {
    Http2Guard::Instance().AddAnswer(call.peer());
  }
  return authorized;
}

grpc::Status InformationService::Describe(const grpc::ServerContext& call,
                                          const v1::GetServerInformationRequest& request,
                                          v1::ServerInformation* response) const {
  const auto tenant = Authorize(call);
  if (const auto* refusal = std::get_if<Refusal>(&tenant)) return RefusedStatus(*refusal);
  if (const auto refusal = service::FindUnknown(request, "")) return RefusedStatus(*refusal);
  response->set_version(std::string(service::Version()));
  response->add_contracts("sortition.v1");
  response->add_law_versions(law::kLawVersion);
  for (const service::DeviceStatus& status : engine_.batcher().keeper().statuses()) {
    const devices::DeviceDescription& description = status.device->description();
    v1::DeviceInformation* information = response->add_devices();
    information->set_name(description.name);
    information->set_kind(ToKind(description.kind));
    information->set_hardware(description.hardware);
    information->set_max_batch_rows(description.max_batch_rows);
    information->set_state(ToState(status.state));
    information->set_reason(status.reason);
    information->set_max_vocabulary(description.max_vocabulary);
    information->set_launch_nanoseconds(status.costs.launch * 1e9);
    information->set_row_nanoseconds(status.costs.row * 1e9);
    information->set_byte_nanoseconds(status.costs.byte * 1e9);
    for (const std::string_view name : service::NamesOf(kernels::kAllFeatures & ~description.features)) {
      information->add_lacks(std::string(name));
    }
  }
  for (const service::MissingDevice& device : engine_.missing_devices()) AddMissing(device, response);
  for (const service::LimitDescription& limit : service::DescribeLimits(engine_.limits())) AddLimit(limit, response);
  for (const service::ParameterDescription& parameter : service::Parameters()) AddParameter(parameter, response);
  response->set_grpc_version(grpc::Version());
  if (engine_.policies() != nullptr) AddPolicy(*engine_.policies(), std::get<std::string>(tenant), response);
  return grpc::Status::OK;
}

std::variant<grpc::Status, std::unique_ptr<Watch<v1::Counters>>> InformationService::BeginWatch(
    const grpc::ServerContext& call, const v1::WatchCountersRequest& request) {
  const auto tenant = Authorize(call);
  if (const auto* refusal = std::get_if<Refusal>(&tenant)) return RefusedStatus(*refusal);
  if (const auto refusal = service::FindUnknown(request, "")) return RefusedStatus(*refusal);
  const auto interval = ParseInterval(request.has_interval() ? &request.interval() : nullptr, "interval");
  if (const auto* refusal = std::get_if<Refusal>(&interval)) return RefusedStatus(*refusal);
  auto place = watchers_.Enter(call.peer());
  if (const auto* refusal = std::get_if<Refusal>(&place)) return RefusedStatus(*refusal);
  return std::make_unique<IntervalWatch<v1::Counters>>(std::get<Watchers::Place>(std::move(place)),
                                                       std::get<absl::Duration>(interval),
                                                       [this] { return ReadCounters(); });
}

v1::Counters InformationService::ReadCounters() const {
  const service::Observer::Totals totals = engine_.observer().totals();
  v1::Counters counters;
  counters.set_steps(totals.steps);
  counters.set_rows(totals.rows);
  counters.set_tokens(totals.tokens);
  counters.set_errors(totals.errors);
  counters.set_batches(totals.batches);
  counters.set_compact_rows(totals.compact_rows);
  counters.set_rows_required(totals.rows_required);
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

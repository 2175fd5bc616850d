// The calls of AdminService.
#include "service/calls/admin_service.h"

#include <chrono>
#include <future>
#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "service/calls/status_details.h"
#include "service/checks.h"
#include "service/net/credentials.h"
#include "service/shard/shard_table.h"
#include "service/wire/strictness.h"

namespace sortition::server {

using service::Reason;
using service::Refusal;

namespace {

// The longest wait for a verdict. A device that has not answered the golden rows by then is stuck.
constexpr absl::Duration kLongestSelfTest = absl::Seconds(60);
// Period in which a waiting call checks that its client still waits.
constexpr std::chrono::milliseconds kLook(100);

// Turns the batcher's status about a device into a refusal.
Refusal OfDevice(const absl::Status& status) {
  if (absl::IsNotFound(status)) {
    return {Reason::kOutOfRange, "device", "a device of GetServerInformation that is not missing",
            std::string(status.message())};
  }
  return {Reason::kContradiction, "device", "", std::string(status.message())};
}

// Returns nothing if the contract does not name the value.
std::optional<LogLevel> ToLogLevel(v1::LogLevel level) {
  switch (level) {
    case v1::LOG_LEVEL_DEBUG:
      return LogLevel::kDebug;
    case v1::LOG_LEVEL_INFO:
      return LogLevel::kInfo;
    case v1::LOG_LEVEL_WARNING:
      return LogLevel::kWarning;
    case v1::LOG_LEVEL_ERROR:
      return LogLevel::kError;
    default:
      return std::nullopt;
  }
}

v1::LogLevel ToLogLevel(LogLevel level) {
  switch (level) {
    case LogLevel::kDebug:
      return v1::LOG_LEVEL_DEBUG;
    case LogLevel::kInfo:
      return v1::LOG_LEVEL_INFO;
    case LogLevel::kWarning:
      return v1::LOG_LEVEL_WARNING;
    case LogLevel::kError:
      return v1::LOG_LEVEL_ERROR;
  }
  return v1::LOG_LEVEL_UNSPECIFIED;
}

}  // namespace

AdminService::AdminService(const Authorization* authorization, service::Engine* engine, Log* log,
                           std::function<void()> stop)
    : authorization_(*authorization), engine_(*engine), log_(*log), stop_(std::move(stop)) {}

grpc::Status AdminService::Refuse(const Refusal& refusal) {
  engine_.observer().Refused(refusal.reason, refusal.field, 1);
  return RefusedStatus(refusal);
}

grpc::Status AdminService::Begin(const grpc::ServerContext& context, const google::protobuf::Message& request,
                                 const char* action, const char* field, const std::string& target) {
  const auto authorized = authorization_.Authorize(EvidenceOf(context), kAdmin);
  std::optional<Refusal> refusal;
  if (const auto* unauthorized = std::get_if<Refusal>(&authorized)) refusal = *unauthorized;
  if (!refusal) refusal = service::FindUnknown(request, "");
  if (!refusal) refusal = service::CheckByteCount(target.size(), service::Bounds::max_name_bytes(), field);
  if (refusal) {
    log_.Write(LogLevel::kWarning, "admin_refused",
               {{"action", action},
                {"peer", context.peer()},
                {"reason", service::ReasonName(refusal->reason)},
                {"message", refusal->message}});
    return Refuse(*refusal);
  }
  log_.Write(LogLevel::kInfo, "admin",
             {{"action", action}, {"identity", std::get<std::string>(authorized)}, {"target", target}});
  return grpc::Status::OK;
}

grpc::Status AdminService::Drain(grpc::ServerContext* context, const v1::DrainRequest* request, v1::DrainResponse*) {
  if (grpc::Status status = Begin(*context, *request, "drain", "", ""); !status.ok()) return status;
  stop_();
  return grpc::Status::OK;
}

grpc::Status AdminService::SelfTestDevice(grpc::ServerContext* context, const v1::SelfTestDeviceRequest* request,
                                          v1::SelfTestDeviceResponse* response) {
  if (grpc::Status status = Begin(*context, *request, "self_test", "device", request->device()); !status.ok())
    return status;
  // Shared: the verdict may come after the call has been cancelled.
  const auto promise = std::make_shared<std::promise<absl::Status>>();
  std::future<absl::Status> verdict = promise->get_future();
  const absl::Status started = engine_.batcher().keeper().RunSelfTest(
      request->device(), [promise](absl::Status status) { promise->set_value(std::move(status)); });
  if (!started.ok()) return Refuse(OfDevice(started));
  const auto end = std::chrono::steady_clock::now() + absl::ToChronoMicroseconds(kLongestSelfTest);
  while (verdict.wait_for(kLook) != std::future_status::ready) {
    if (context->IsCancelled()) return grpc::Status::CANCELLED;
    if (std::chrono::steady_clock::now() < end) continue;
    return Refuse({Reason::kDeadlinePassed, "device", absl::FormatDuration(kLongestSelfTest),
                   "the device has not answered the golden rows yet"});
  }
  const absl::Status status = verdict.get();
  response->set_passed(status.ok());
  response->set_reason(std::string(status.message()));
  return grpc::Status::OK;
}

grpc::Status AdminService::QuarantineDevice(grpc::ServerContext* context, const v1::QuarantineDeviceRequest* request,
                                            v1::QuarantineDeviceResponse*) {
  if (grpc::Status status = Begin(*context, *request, "quarantine", "device", request->device()); !status.ok())
    return status;
  if (auto refusal = service::CheckByteCount(request->reason().size(), service::Bounds::max_name_bytes(), "reason")) {
    return Refuse(*refusal);
  }
  const absl::Status held = engine_.batcher().keeper().Hold(request->device(), request->reason());
  return held.ok() ? grpc::Status::OK : Refuse(OfDevice(held));
}

grpc::Status AdminService::SetLogLevel(grpc::ServerContext* context, const v1::SetLogLevelRequest* request,
                                       v1::SetLogLevelResponse* response) {
  const std::optional<LogLevel> level = ToLogLevel(request->level());
  const std::string target = level ? AbslUnparseFlag(*level) : "";
  if (grpc::Status status = Begin(*context, *request, "log_level", "level", target); !status.ok()) return status;
  if (!level) return Refuse({Reason::kMissingField, "level", "debug, info, warning or error", "must be set"});
  response->set_previous(ToLogLevel(log_.SetLeast(*level)));
  return grpc::Status::OK;
}

grpc::Status AdminService::ListClients(grpc::ServerContext* context, const v1::ListClientsRequest* request,
                                       v1::ListClientsResponse* response) {
  if (grpc::Status status = Begin(*context, *request, "clients", "", ""); !status.ok()) return status;
  // By identity. Some clients have sequences, but no stream.
  std::map<std::string, v1::Client> clients;
  for (const auto& account : engine_.clients().all()) {
    const service::ClientAccount::Use use = account->use();
    v1::Client& client = clients[account->identity()];
    client.set_streams(use.streams);
    client.set_regions(use.regions);
    client.set_memory_bytes(use.memory_bytes);
  }
  for (const auto& [identity, use] : engine_.sequences().tenant_uses()) {
    clients[identity].set_sequences(use.sequences);
    clients[identity].set_state_bytes(use.bytes);
  }
  for (auto& [identity, client] : clients) {
    client.set_identity(identity);
    *response->add_clients() = std::move(client);
  }
  return grpc::Status::OK;
}

grpc::Status AdminService::ForgetSequences(grpc::ServerContext* context, const v1::ForgetSequencesRequest* request,
                                           v1::ForgetSequencesResponse* response) {
  if (grpc::Status status = Begin(*context, *request, "forget", "identity", request->identity()); !status.ok())
    return status;
  if (auto refusal = service::CheckName(request->identity(), "identity")) return Refuse(*refusal);
  const service::SequenceTable::Forgotten forgotten = engine_.sequences().ForgetAll(request->identity());
  engine_.shards().Forget(request->identity());
  response->set_forgotten(forgotten.forgotten);
  response->set_busy(forgotten.busy);
  return grpc::Status::OK;
}

}  // namespace sortition::server

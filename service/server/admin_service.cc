// The calls of AdminService.
#include "service/server/admin_service.h"

#include <chrono>
#include <future>
#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "service/request/checks.h"
#include "service/request/strictness.h"
#include "service/server/credentials.h"
#include "service/server/status_details.h"
#include "service/shard/shard_table.h"

namespace sortition::server {

using service::Reason;
using service::Refusal;

namespace {

// A device that has not answered golden rows by then has more wrong with it than a verdict would say.
constexpr absl::Duration kLongestSelfTest = absl::Seconds(60);
// How often a call that waits looks whether its client still does.
constexpr std::chrono::milliseconds kLook(100);

// What the batcher says of a device, as the wire's reasons.
Refusal OfDevice(const absl::Status& status) {
  if (absl::IsNotFound(status)) {
    return {Reason::kOutOfRange, "device", "a device of GetServerInformation that is not missing",
            std::string(status.message())};
  }
  return {Reason::kContradiction, "device", "", std::string(status.message())};
}

}  // namespace

AdminService::AdminService(const Authorization* authorization, service::Engine* engine, Log* log,
                           std::function<void()> stop)
    : authorization_(*authorization), engine_(*engine), log_(*log), stop_(std::move(stop)) {}

grpc::Status AdminService::Refuse(const Refusal& refusal) {
  engine_.observer().Refused(refusal.reason, 1);
  return RefusedStatus(refusal);
}

grpc::Status AdminService::Begin(const grpc::ServerContext& context, const google::protobuf::Message& request,
                                 const char* action, const char* field, const std::string& target) {
  const auto authorized = authorization_.Authorize(EvidenceOf(context), kAdmin);
  std::optional<Refusal> refusal;
  if (const auto* unauthorized = std::get_if<Refusal>(&authorized)) refusal = *unauthorized;
  if (!refusal) refusal = service::FindUnknown(request, "");
  if (!refusal) refusal = service::CheckByteCount(target.size(), service::kMaxNameBytes, field);
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
  if (grpc::Status status = Begin(*context, *request, "prove", "device", request->device()); !status.ok())
    return status;
  // The verdict may come after the call has been given up.
  const auto promise = std::make_shared<std::promise<absl::Status>>();
  std::future<absl::Status> verdict = promise->get_future();
  const absl::Status started = engine_.batcher().Prove(
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
  response->set_verdict(std::string(status.message()));
  return grpc::Status::OK;
}

grpc::Status AdminService::QuarantineDevice(grpc::ServerContext* context, const v1::QuarantineDeviceRequest* request,
                                            v1::QuarantineDeviceResponse*) {
  if (grpc::Status status = Begin(*context, *request, "quarantine", "device", request->device()); !status.ok())
    return status;
  if (auto refusal = service::CheckByteCount(request->why().size(), service::kMaxNameBytes, "why")) {
    return Refuse(*refusal);
  }
  const absl::Status held = engine_.batcher().Hold(request->device(), request->why());
  return held.ok() ? grpc::Status::OK : Refuse(OfDevice(held));
}

grpc::Status AdminService::SetLogLevel(grpc::ServerContext* context, const v1::SetLogLevelRequest* request,
                                       v1::SetLogLevelResponse* response) {
  if (grpc::Status status = Begin(*context, *request, "log_level", "level", request->level()); !status.ok())
    return status;
  LogLevel level;
  std::string error;
  if (!AbslParseFlag(request->level(), &level, &error)) {
    return Refuse({Reason::kOutOfRange, "level", "debug, info, warning or error", "no level has this name"});
  }
  response->set_previous(AbslUnparseFlag(log_.SetLeast(level)));
  return grpc::Status::OK;
}

grpc::Status AdminService::ListClients(grpc::ServerContext* context, const v1::ListClientsRequest* request,
                                       v1::ListClientsResponse* response) {
  if (grpc::Status status = Begin(*context, *request, "clients", "", ""); !status.ok()) return status;
  // By identity. Some have only the sequences that they have left behind.
  std::map<std::string, v1::Client> clients;
  for (const auto& account : engine_.clients().all()) {
    const service::ClientAccount::Use use = account->use();
    v1::Client& client = clients[account->identity()];
    client.set_streams(use.streams);
    client.set_regions(use.regions);
    client.set_memory_bytes(use.memory_bytes);
  }
  for (const auto& [identity, use] : engine_.sequences().client_uses()) {
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

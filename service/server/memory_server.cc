// Packets of the memory socket.
#include "service/server/memory_server.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <optional>
#include <string>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "kernels/check.h"
#include "service/memory/packet.h"
#include "service/request/checks.h"
#include "service/request/device_memory.h"
#include "service/request/strictness.h"
#include "service/result/encode.h"
#include "service/server/accept_loop.h"
#include "service/server/ring_stream.h"
#include "service/server/steady_wait.h"

namespace sortition::server {

using service::Descriptor;
using service::Reason;
using service::Refusal;

namespace {

constexpr size_t kMostPacketBytes = 4096;
// How often connections are looked at that a new list of clients may not name any more.
constexpr int kLookMilliseconds = 500;

// Whether a client that was let in still would be, as the same. Looks again only where the list may have changed.
class StillAuthorized {
 public:
  StillAuthorized(const Authorization* authorization, const Evidence& evidence, std::string identity)
      : authorization_(*authorization), evidence_(evidence), identity_(std::move(identity)) {}
  bool operator()() {
    const uint64_t version = authorization_.version();
    if (std::exchange(version_, version) == version) return true;
    const auto authorized = authorization_.Authorize(evidence_, kSample);
    const auto* same = std::get_if<std::string>(&authorized);
    return same != nullptr && *same == identity_;
  }

 private:
  const Authorization& authorization_;
  const Evidence evidence_;
  const std::string identity_;
  std::optional<uint64_t> version_;  // that was looked at last
};

// False if the client does not take it now: its buffer holds hundreds of packets.
bool SendResponse(int socket, const v1::MemoryResponse& response, const Descriptor& descriptor) {
  return service::SendPacket(socket, response.SerializeAsString(), descriptor.get(), MSG_DONTWAIT);
}

v1::MemoryResponse Refused(const Refusal& refusal) {
  v1::MemoryResponse response;
  service::EncodeError(refusal, response.mutable_error());
  return response;
}

}  // namespace

// Ends a wait for events; may outlive the server.
class MemoryServer::Wakeup {
 public:
  Wakeup() : event_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) { SORTITION_CHECK(event_); }
  int fd() const { return event_.get(); }
  void Signal() {
    const uint64_t one = 1;
    SORTITION_CHECK(write(event_.get(), &one, sizeof(one)) == sizeof(one));
  }
  void Clear() {
    uint64_t count;
    SORTITION_CHECK(read(event_.get(), &count, sizeof(count)) == sizeof(count) || errno == EAGAIN);
  }

 private:
  const Descriptor event_;
};

struct MemoryServer::Client {
  Client(Descriptor socket, std::shared_ptr<service::MemoryConnection> memory, const Evidence& evidence,
         std::string identity, StillAuthorized still_authorized)
      : socket(std::move(socket)),
        memory(std::move(memory)),
        evidence(evidence),
        identity(std::move(identity)),
        still_authorized(std::move(still_authorized)) {}
  ~Client() {
    if (ring != nullptr) ring->Stop();
    memory->Close();
  }

  void Send(const v1::MemoryResponse& response, const Descriptor& descriptor = Descriptor()) {
    if (!SendResponse(socket.get(), response, descriptor)) over = true;
  }

  const Descriptor socket;
  const std::shared_ptr<service::MemoryConnection> memory;
  const Evidence evidence;
  const std::string identity;
  StillAuthorized still_authorized;
  absl::flat_hash_set<uint64_t> unregistered;  // regions whose release the client waits for
  service::ClientStream stream;                // of the ring
  std::shared_ptr<RingStream> ring;            // null if it has none
  bool drained = false;                        // the ring's stream has been told
  bool over = false;
};

MemoryServer::MemoryServer(const Config& config, const Authorization* authorization, service::Engine* engine, Log* log)
    : config_(config),
      authorization_(*authorization),
      engine_(*engine),
      log_(*log),
      wakeup_(std::make_shared<Wakeup>()),
      thread_([this] { Run(); }) {}

MemoryServer::~MemoryServer() { Stop(); }

void MemoryServer::Take(Descriptor connection) {
  absl::MutexLock lock(&mutex_);
  if (stopping_) return;
  taken_.push_back(std::move(connection));
  wakeup_->Signal();
}

void MemoryServer::Stop() {
  if (!thread_.joinable()) return;
  {
    absl::MutexLock lock(&mutex_);
    stopping_ = true;
    taken_.clear();
  }
  wakeup_->Signal();
  thread_.join();
}

void MemoryServer::Run() {
  for (;;) {
    std::vector<pollfd> polled = {{wakeup_->fd(), POLLIN, 0}};
    for (const Client& client : clients_) polled.push_back({client.socket.get(), POLLIN, 0});
    if (poll(polled.data(), polled.size(), authorization_.has_list() ? kLookMilliseconds : -1) < 0) {
      SORTITION_CHECK(errno == EINTR);
      continue;
    }
    size_t index = 1;
    for (Client& client : clients_) {
      if (polled[index++].revents != 0) Receive(&client);
    }
    std::vector<Descriptor> taken;
    if (polled[0].revents != 0) {
      wakeup_->Clear();
      for (Client& client : clients_) AnswerReleased(&client);
      absl::MutexLock lock(&mutex_);
      if (stopping_) break;
      taken.swap(taken_);
    }
    EndRings();
    EndRevoked();
    RemoveClients();
    for (Descriptor& connection : taken) Admit(std::move(connection));
  }
  clients_.clear();
}

void MemoryServer::RemoveClients() {
  uint32_t rings = 0;
  for (const Client& client : clients_) rings += client.over && client.ring != nullptr;
  clients_.remove_if([](const Client& client) { return client.over; });
  absl::MutexLock lock(&mutex_);
  rings_ -= rings;
}

void MemoryServer::Admit(Descriptor connection) {
  const auto refuse = [&](const Refusal& refusal) {
    log_.Write(LogLevel::kWarning, "memory_refused", {{"message", refusal.message}, {"limit", refusal.limit}});
    SendResponse(connection.get(), Refused(refusal), Descriptor());
  };
  const Evidence evidence = {.user = service::UserOfPeer(connection.get())};
  auto authorized = authorization_.Authorize(evidence, kSample);
  if (const auto* refusal = std::get_if<Refusal>(&authorized)) return refuse(*refusal);
  auto entered = engine_.clients().Enter(std::get<std::string>(authorized));
  if (const auto* refusal = std::get_if<Refusal>(&entered)) return refuse(*refusal);
  auto connected = engine_.regions().Connect([wakeup = wakeup_] { wakeup->Signal(); },
                                             std::get<std::shared_ptr<service::ClientAccount>>(entered));
  if (const auto* refusal = std::get_if<Refusal>(&connected)) return refuse(*refusal);
  auto memory = std::get<std::shared_ptr<service::MemoryConnection>>(std::move(connected));
  v1::MemoryResponse response;
  response.mutable_welcome()->set_token(memory->token());
  response.mutable_welcome()->set_server_instance(engine_.regions().instance());
  response.mutable_welcome()->set_most_bytes(engine_.limits().connection_memory_bytes);
  response.mutable_welcome()->set_most_regions(engine_.limits().connection_regions);
  if (TakesDeviceMemory()) {
    response.mutable_welcome()->set_most_device_bytes(engine_.limits().connection_device_bytes);
    for (const auto& device : engine_.devices()) {
      const devices::MemoryIdentity& identity = device->description().identity;
      if (identity.kind != devices::MemoryKind::kNone) {
        service::EncodeIdentity(identity, response.mutable_welcome()->add_devices());
      }
    }
  }
  std::string identity = std::get<std::string>(std::move(authorized));
  StillAuthorized still_authorized(&authorization_, evidence, identity);
  clients_
      .emplace_back(std::move(connection), std::move(memory), evidence, std::move(identity),
                    std::move(still_authorized))
      .Send(response);
}

void MemoryServer::Receive(Client* client) {
  std::array<char, kMostPacketBytes> packet;
  Descriptor descriptor;
  const ssize_t size =
      service::ReceivePacket(client->socket.get(), packet, TakesDeviceMemory() ? &descriptor : nullptr, MSG_DONTWAIT);
  if (size < 0 && (errno == EAGAIN || errno == EINTR)) return;
  if (size <= 0) {
    client->over = true;
    return;
  }
  v1::MemoryRequest request;
  if (static_cast<size_t>(size) > packet.size() || !request.ParseFromArray(packet.data(), static_cast<int>(size))) {
    client->Send(Refused({Reason::kMalformedMessage, "", "", "not a sortition.v1.MemoryRequest"}));
    client->over = true;
    return;
  }
  Answer(client, request, descriptor);
}

void MemoryServer::Answer(Client* client, const v1::MemoryRequest& request, const Descriptor& descriptor) {
  if (auto refusal = service::FindUnknown(request, "")) return client->Send(Refused(*refusal));
  switch (request.kind_case()) {
    case v1::MemoryRequest::kRegisterRegion:
      return Register(client, request.register_region().bytes());
    case v1::MemoryRequest::kUnregisterRegion:
      return Unregister(client, request.unregister_region().region_id());
    case v1::MemoryRequest::kOpenRing:
      return OpenRing(client);
    case v1::MemoryRequest::kRegisterDeviceRegion:
      return RegisterDevice(client, request.register_device_region(), descriptor);
    case v1::MemoryRequest::KIND_NOT_SET:
      return client->Send(Refused(service::MissingField("kind")));
  }
}

void MemoryServer::Register(Client* client, uint64_t bytes) {
  auto made = client->memory->Register(bytes);
  if (const auto* refusal = std::get_if<Refusal>(&made)) {
    log_.Write(LogLevel::kWarning, "memory_refused", {{"message", refusal->message}, {"limit", refusal->limit}});
    return client->Send(Refused(*refusal));
  }
  const auto& registered = std::get<service::MemoryConnection::Registered>(made);
  v1::MemoryResponse response;
  response.mutable_registered()->set_region_id(registered.id);
  response.mutable_registered()->set_bytes(registered.bytes);
  client->Send(response, registered.descriptor);
}

void MemoryServer::RegisterDevice(Client* client, const v1::RegisterDeviceRegion& request,
                                  const Descriptor& descriptor) {
  const auto refuse = [&](const Refusal& refusal) {
    log_.Write(LogLevel::kWarning, "memory_refused", {{"message", refusal.message}, {"limit", refusal.limit}});
    client->Send(Refused(refusal));
  };
  if (!TakesDeviceMemory()) {
    return refuse({Reason::kOutOfRange, "register_device_region", "connection_device_bytes 0",
                   "this server takes no device's memory"});
  }
  const auto parsed = service::ParseDeviceRegion(request, descriptor.get());
  if (const auto* refusal = std::get_if<Refusal>(&parsed)) return refuse(*refusal);
  const auto& region = std::get<service::DeviceRegionRequest>(parsed);
  const auto& devices = engine_.devices();
  const auto device = std::ranges::find_if(
      devices, [&](const auto& device) { return device->description().identity == region.identity; });
  if (device == devices.end()) {
    return refuse({Reason::kOutOfRange, "register_device_region.device", "one of the welcome's devices",
                   "this server has no such device"});
  }
  auto made = client->memory->Import(device->get(), region.handle);
  if (const auto* refusal = std::get_if<Refusal>(&made)) return refuse(*refusal);
  v1::MemoryResponse response;
  response.mutable_registered()->set_region_id(std::get<uint64_t>(made));
  response.mutable_registered()->set_bytes(region.handle.bytes);
  client->Send(response);
}

void MemoryServer::Unregister(Client* client, uint64_t region_id) {
  const bool is_first = client->unregistered.insert(region_id).second;  // before it can be released
  if (auto refusal = client->memory->Unregister(region_id)) {
    if (is_first) client->unregistered.erase(region_id);
    client->Send(Refused(*refusal));
  }
}

void MemoryServer::OpenRing(Client* client) {
  if (client->ring != nullptr) {
    return client->Send(Refused({Reason::kContradiction, "open_ring", "1", "this connection has a ring"}));
  }
  const uint32_t most = engine_.limits().max_rings;
  {
    absl::MutexLock lock(&mutex_);
    if (draining_) {
      return client->Send(Refused({Reason::kDraining, "", "", "the server is shutting down", absl::Seconds(1)}));
    }
    if (rings_ >= most) {
      return client->Send(Refused({Reason::kOverloaded, "open_ring", absl::StrCat("max_rings ", most),
                                   "as many streams over rings are open as there may be", absl::Seconds(1)}));
    }
  }
  auto stream = engine_.clients().OpenStream(client->identity);
  if (const auto* refusal = std::get_if<Refusal>(&stream)) return client->Send(Refused(*refusal));
  auto made = client->memory->MakeRing(service::kRingPairBytes);
  if (const auto* refusal = std::get_if<Refusal>(&made)) return client->Send(Refused(*refusal));
  auto& ring = std::get<service::MemoryConnection::Ring>(made);
  v1::MemoryResponse response;
  response.mutable_ring_opened()->set_bytes(service::kRingPairBytes);
  client->Send(response, ring.descriptor);
  absl::MutexLock lock(&mutex_);
  client->stream = std::get<service::ClientStream>(std::move(stream));
  client->ring = RingStream::Start({.engine = &engine_,
                                    .log = &log_,
                                    .peer = absl::StrCat("ring:uid:", *client->evidence.user),
                                    .tenant = client->identity,
                                    .still_authorized = client->still_authorized,
                                    .spin = config_.ring_spin,
                                    .drain_grace = config_.drain_grace,
                                    .on_ended = [wakeup = wakeup_] { wakeup->Signal(); }},
                                   std::move(ring.memory));
  ++rings_;
}

void MemoryServer::EndRings() {
  bool drain;
  {
    absl::MutexLock lock(&mutex_);
    drain = draining_;
  }
  for (Client& client : clients_) {
    if (client.ring == nullptr) continue;
    if (client.ring->ended()) {
      client.over = true;
    } else if (drain && !client.drained) {
      client.drained = true;
      client.ring->Drain(v1::DrainingNotice::CAUSE_SHUTDOWN, config_.drain_grace);
    }
  }
}

void MemoryServer::EndRevoked() {
  for (Client& client : clients_) {
    // A stream over a ring is told why it ends, and takes its connection along.
    if (client.ring == nullptr && !client.still_authorized()) client.over = true;
  }
}

void MemoryServer::StartDraining() {
  absl::MutexLock lock(&mutex_);
  draining_ = true;
  wakeup_->Signal();
}

uint32_t MemoryServer::rings() const {
  absl::MutexLock lock(&mutex_);
  return rings_;
}

uint32_t MemoryServer::AwaitRings(absl::Duration grace) {
  WaitSteadily(grace, [this] { return rings() == 0; });
  return rings();
}

void MemoryServer::AnswerReleased(Client* client) {
  for (const uint64_t id : client->memory->TakeReleased()) {
    if (client->unregistered.erase(id) == 0) continue;
    v1::MemoryResponse response;
    response.mutable_unregistered()->set_region_id(id);
    client->Send(response);
  }
}

}  // namespace sortition::server

// Packets of the memory socket.
#include "service/calls/memory_server.h"

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
#include "service/calls/ring_stream.h"
#include "service/checks.h"
#include "service/memory/packet.h"
#include "service/net/accept_loop.h"
#include "service/wire/device_memory.h"
#include "service/wire/encode.h"
#include "service/wire/strictness.h"
#include "service/wire/wire_scan.h"

namespace sortition::server {

using service::Descriptor;
using service::Reason;
using service::Refusal;

namespace {

constexpr size_t kMostPacketBytes = 4096;
// Period in which connections are checked against a new list of clients.
constexpr int kLookMilliseconds = 500;

// True if an admitted client would still be admitted under the same identity. Asks again only when the list may have
// changed.
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
  std::optional<uint64_t> version_;  // the last used authorization's
};

// Returns false if the client does not take the packet now: its buffer is full, with hundreds of packets.
bool SendResponse(int socket, const v1::MemoryResponse& response, const Descriptor& descriptor) {
  return service::SendPacket(socket, response.SerializeAsString(), descriptor.get(), MSG_DONTWAIT);
}

v1::MemoryResponse Refused(const Refusal& refusal) {
  v1::MemoryResponse response;
  service::EncodeError(refusal, response.mutable_error());
  return response;
}

}  // namespace

// Ends the thread's wait for events. May outlive the server.
class MemoryServer::WakeEvent {
 public:
  WakeEvent() : event_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) { SORTITION_CHECK(event_); }
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

struct MemoryServer::Peer {
  Peer(Descriptor socket, std::shared_ptr<service::MemoryConnection> memory, const Evidence& evidence,
       std::string identity, StillAuthorized still_authorized)
      : socket(std::move(socket)),
        memory(std::move(memory)),
        evidence(evidence),
        identity(std::move(identity)),
        still_authorized(std::move(still_authorized)) {}
  ~Peer() {
    if (ring != nullptr) ring->Stop();
    ring.reset();
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
  absl::flat_hash_set<uint64_t> unregistered;  // regions whose release the worker waits for
  service::ClientStream stream;                // the ring's
  std::unique_ptr<RingStream> ring;            // null if it has none
  bool drained = false;                        // the ring's stream has been told to end
  bool over = false;
};

MemoryServer::MemoryServer(const Config& config, const Authorization* authorization, service::Engine* engine, Log* log)
    : config_(config),
      authorization_(*authorization),
      engine_(*engine),
      log_(*log),
      wake_event_(std::make_shared<WakeEvent>()),
      thread_([this] { Run(); }) {}

MemoryServer::~MemoryServer() { Stop(); }

void MemoryServer::Take(Descriptor connection) {
  absl::MutexLock lock(&mutex_);
  if (stopping_) return;
  taken_.push_back(std::move(connection));
  wake_event_->Signal();
}

void MemoryServer::Stop() {
  if (!thread_.joinable()) return;
  {
    absl::MutexLock lock(&mutex_);
    stopping_ = true;
    taken_.clear();
  }
  wake_event_->Signal();
  thread_.join();
}

void MemoryServer::Run() {
  for (;;) {
    std::vector<pollfd> polled = {{wake_event_->fd(), POLLIN, 0}};
    for (const Peer& peer : peers_) {
      // A connection that is over waits for the end of its stream alone.
      const bool awaits_stream = peer.over && peer.ring != nullptr;
      polled.push_back({awaits_stream ? -1 : peer.socket.get(), POLLIN, 0});
    }
    if (poll(polled.data(), polled.size(), authorization_.has_list() ? kLookMilliseconds : -1) < 0) {
      SORTITION_CHECK(errno == EINTR);
      continue;
    }
    size_t index = 1;
    for (Peer& peer : peers_) {
      if (polled[index++].revents != 0) Receive(&peer);
    }
    std::vector<Descriptor> taken;
    if (polled[0].revents != 0) {
      wake_event_->Clear();
      for (Peer& peer : peers_) AnswerReleased(&peer);
      absl::MutexLock lock(&mutex_);
      if (stopping_) break;
      taken.swap(taken_);
    }
    EndRings();
    EndRevoked();
    RemovePeers();
    for (Descriptor& connection : taken) Admit(std::move(connection));
  }
  peers_.clear();
}

void MemoryServer::RemovePeers() {
  uint32_t rings = 0;
  for (auto peer = peers_.begin(); peer != peers_.end();) {
    RingStream* const ring = peer->ring.get();
    if (peer->over && ring != nullptr && !ring->ended()) ring->BeginStop();
    // The thread of a stream that is not over yet is not joined: other clients would wait. Its end wakes this thread.
    if (!peer->over || (ring != nullptr && !ring->ended())) {
      ++peer;
      continue;
    }
    rings += ring != nullptr;
    peer = peers_.erase(peer);
  }
  absl::MutexLock lock(&mutex_);
  rings_ -= rings;
  if (rings_ == 0) rings_ended_.NotifyAll();
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
  auto connected = engine_.regions().Connect([wake_event = wake_event_] { wake_event->Signal(); },
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
  peers_
      .emplace_back(std::move(connection), std::move(memory), evidence, std::move(identity),
                    std::move(still_authorized))
      .Send(response);
}

void MemoryServer::Receive(Peer* peer) {
  std::array<char, kMostPacketBytes> packet;
  Descriptor descriptor;
  const ssize_t size =
      service::ReceivePacket(peer->socket.get(), packet, TakesDeviceMemory() ? &descriptor : nullptr, MSG_DONTWAIT);
  if (size < 0 && (errno == EAGAIN || errno == EINTR)) return;
  if (size <= 0) {
    peer->over = true;
    return;
  }
  v1::MemoryRequest request;
  if (static_cast<size_t>(size) > packet.size() || !request.ParseFromArray(packet.data(), static_cast<int>(size))) {
    peer->Send(Refused({Reason::kMalformedMessage, "", "", "not a sortition.v1.MemoryRequest"}));
    peer->over = true;
    return;
  }
  const absl::string_view bytes(packet.data(), static_cast<size_t>(size));
  if (auto twice = service::FindSetTwice(bytes, *v1::MemoryRequest::descriptor())) {
    return peer->Send(Refused(twice->refusal));
  }
  Answer(peer, request, descriptor);
}

void MemoryServer::Answer(Peer* peer, const v1::MemoryRequest& request, const Descriptor& descriptor) {
  if (auto refusal = service::FindUnknown(request, "")) return peer->Send(Refused(*refusal));
  switch (request.kind_case()) {
    case v1::MemoryRequest::kRegisterRegion:
      return Register(peer, request.register_region().bytes());
    case v1::MemoryRequest::kUnregisterRegion:
      return Unregister(peer, request.unregister_region().region_id());
    case v1::MemoryRequest::kOpenRing:
      return OpenRing(peer);
    case v1::MemoryRequest::kRegisterDeviceRegion:
      return RegisterDevice(peer, request.register_device_region(), descriptor);
    case v1::MemoryRequest::KIND_NOT_SET:
      return peer->Send(Refused(service::MissingField("kind")));
  }
}

void MemoryServer::Register(Peer* peer, uint64_t bytes) {
  auto made = peer->memory->Register(bytes);
  if (const auto* refusal = std::get_if<Refusal>(&made)) {
    log_.Write(LogLevel::kWarning, "memory_refused", {{"message", refusal->message}, {"limit", refusal->limit}});
    return peer->Send(Refused(*refusal));
  }
  const auto& registered = std::get<service::MemoryConnection::Registered>(made);
  v1::MemoryResponse response;
  response.mutable_registered()->set_region_id(registered.id);
  response.mutable_registered()->set_bytes(registered.bytes);
  peer->Send(response, registered.descriptor);
}

void MemoryServer::RegisterDevice(Peer* peer, const v1::RegisterDeviceRegion& request, const Descriptor& descriptor) {
  const auto refuse = [&](const Refusal& refusal) {
    log_.Write(LogLevel::kWarning, "memory_refused", {{"message", refusal.message}, {"limit", refusal.limit}});
    peer->Send(Refused(refusal));
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
  auto made = peer->memory->Import(device->get(), region.handle);
  if (const auto* refusal = std::get_if<Refusal>(&made)) return refuse(*refusal);
  v1::MemoryResponse response;
  response.mutable_registered()->set_region_id(std::get<uint64_t>(made));
  response.mutable_registered()->set_bytes(region.handle.bytes);
  peer->Send(response);
}

void MemoryServer::Unregister(Peer* peer, uint64_t region_id) {
  const bool is_first = peer->unregistered.insert(region_id).second;  // before it can be released
  if (auto refusal = peer->memory->Unregister(region_id)) {
    if (is_first) peer->unregistered.erase(region_id);
    peer->Send(Refused(*refusal));
  }
}

void MemoryServer::OpenRing(Peer* peer) {
  if (peer->ring != nullptr) {
    return peer->Send(Refused({Reason::kContradiction, "open_ring", "1", "this connection has a ring"}));
  }
  const service::Bound most = service::Bounds(engine_.limits()).max_rings();
  {
    absl::MutexLock lock(&mutex_);
    if (draining_) {
      return peer->Send(Refused({Reason::kDraining, "", "", "the server is shutting down", absl::Seconds(1)}));
    }
    if (rings_ >= most.value) {
      return peer->Send(Refused({Reason::kOverloaded, "open_ring", most.Text(),
                                 "as many streams over rings are open as there may be", absl::Seconds(1)}));
    }
  }
  auto stream = engine_.clients().OpenStream(peer->identity);
  if (const auto* refusal = std::get_if<Refusal>(&stream)) return peer->Send(Refused(*refusal));
  auto made = peer->memory->MakeRing(service::kRingPairBytes);
  if (const auto* refusal = std::get_if<Refusal>(&made)) return peer->Send(Refused(*refusal));
  auto& ring = std::get<service::MemoryConnection::Ring>(made);
  v1::MemoryResponse response;
  response.mutable_ring_opened()->set_bytes(service::kRingPairBytes);
  peer->Send(response, ring.descriptor);
  absl::MutexLock lock(&mutex_);
  peer->stream = std::get<service::ClientStream>(std::move(stream));
  peer->ring = std::make_unique<RingStream>(
      RingStream::Options{.engine = &engine_,
                          .log = &log_,
                          .peer = absl::StrCat("ring:uid:", *peer->evidence.user),
                          .tenant = peer->identity,
                          .still_authorized = peer->still_authorized,
                          .spin = config_.ring_spin,
                          .drain_grace = config_.drain_grace,
                          .on_ended = [wake_event = wake_event_] { wake_event->Signal(); }},
      std::move(ring.memory));
  ++rings_;
}

void MemoryServer::EndRings() {
  bool drain;
  {
    absl::MutexLock lock(&mutex_);
    drain = draining_;
  }
  for (Peer& peer : peers_) {
    if (peer.ring == nullptr) continue;
    if (peer.ring->ended()) {
      peer.over = true;
    } else if (drain && !peer.drained) {
      peer.drained = true;
      peer.ring->Drain(v1::DrainingNotice::CAUSE_SHUTDOWN, config_.drain_grace);
    }
  }
}

void MemoryServer::EndRevoked() {
  for (Peer& peer : peers_) {
    // A connection with a ring ends with its stream, which notices the change itself.
    if (peer.ring == nullptr && !peer.still_authorized()) peer.over = true;
  }
}

void MemoryServer::StartDraining() {
  absl::MutexLock lock(&mutex_);
  draining_ = true;
  wake_event_->Signal();
}

uint32_t MemoryServer::rings() const {
  absl::MutexLock lock(&mutex_);
  return rings_;
}

uint32_t MemoryServer::AwaitRings(absl::Duration grace) {
  absl::MutexLock lock(&mutex_);
  rings_ended_.WaitFor(&mutex_, grace, [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return rings_ == 0; });
  return rings_;
}

void MemoryServer::AnswerReleased(Peer* peer) {
  for (const uint64_t id : peer->memory->TakeReleased()) {
    if (peer->unregistered.erase(id) == 0) continue;
    v1::MemoryResponse response;
    response.mutable_unregistered()->set_region_id(id);
    peer->Send(response);
  }
}

}  // namespace sortition::server

// Exchanges packets with a memory socket.
#include "client/cpp/transport/memory_link.h"

#include <poll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/cpp/transport/wire_errors.h"
#include "kernels/check.h"
#include "service/memory/packet.h"
#include "service/memory/ring.h"
#include "service/wire/device_memory.h"

namespace sortition::client {
namespace {

constexpr size_t kMostPacketBytes = 4096;
constexpr timeval kLongestSend = {5, 0};  // bound on sending a small packet to a server that does not read

absl::Status Failed(const char* what) { return absl::UnavailableError(absl::StrCat(what, ": ", std::strerror(errno))); }

}  // namespace

MappedRegion::~MappedRegion() { SORTITION_CHECK(munmap(bytes_.data(), bytes_.size()) == 0); }

absl::StatusOr<std::unique_ptr<MemoryLink>> MemoryLink::Connect(const std::string& address, const RetryBudget& budget,
                                                                std::optional<uint32_t> server_user) {
  auto socket = ConnectUnix(address, SOCK_SEQPACKET, budget);
  if (!socket.ok()) return socket.status();
  if (const uid_t user = service::UserOfPeer(socket->get()); user != geteuid() && user != 0 && user != server_user) {
    return absl::PermissionDeniedError(
        absl::StrCat(address, ": user ", user, " listens, who is not memory_server_user"));
  }
  setsockopt(socket->get(), SOL_SOCKET, SO_SNDTIMEO, &kLongestSend, sizeof(kLongestSend));
  std::unique_ptr<MemoryLink> link(new MemoryLink(*std::move(socket)));
  const auto response = link->Receive(nullptr, budget);
  if (!response.ok()) return response.status();
  if (response->has_error()) return ToStatus(FromWire(response->error()));
  if (!response->has_welcome()) return absl::InternalError("the memory socket did not begin with a welcome");
  link->server_instance_ = response->welcome().server_instance();
  link->token_ = response->welcome().token();
  link->most_bytes_ = response->welcome().most_bytes();
  for (const v1::DeviceMemory& device : response->welcome().devices()) {
    link->devices_.push_back(service::DecodeIdentity(device));
  }
  return link;
}

absl::StatusOr<std::unique_ptr<MappedRegion>> MemoryLink::Register(uint64_t bytes, const RetryBudget& budget) {
  v1::MemoryRequest request;
  request.mutable_register_region()->set_bytes(bytes);
  return AskForMemory(request, bytes, budget);
}

absl::StatusOr<uint64_t> MemoryLink::Import(const devices::MemoryIdentity& identity,
                                            const devices::MemoryHandle& handle, const RetryBudget& budget) {
  if (std::ranges::find(devices_, identity) == devices_.end()) {
    return absl::FailedPreconditionError("the server takes no memory of this device");
  }
  v1::MemoryRequest request;
  v1::RegisterDeviceRegion& region = *request.mutable_register_device_region();
  service::EncodeIdentity(identity, region.mutable_device());
  region.set_bytes(handle.bytes);
  region.set_vulkan_memory_type(handle.memory_type);
  const auto response = Ask(request, handle.descriptor, nullptr, budget);
  if (!response.ok()) return response.status();
  if (!response->has_registered()) return absl::InternalError("the memory socket answered what nobody asked");
  return response->registered().region_id();
}

absl::StatusOr<std::unique_ptr<MappedRegion>> MemoryLink::OpenRing(const RetryBudget& budget) {
  v1::MemoryRequest request;
  request.mutable_open_ring();
  return AskForMemory(request, service::kRingPairBytes, budget);
}

absl::StatusOr<std::unique_ptr<MappedRegion>> MemoryLink::AskForMemory(const v1::MemoryRequest& request, uint64_t bytes,
                                                                       const RetryBudget& budget) {
  service::Descriptor descriptor;
  const auto response = Ask(request, -1, &descriptor, budget);
  if (!response.ok()) return response.status();
  const uint64_t size = response->has_registered() ? response->registered().bytes() : response->ring_opened().bytes();
  if (!descriptor || size < bytes) return absl::InternalError("the memory socket answered what nobody asked");
  void* const data = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, descriptor.get(), 0);
  if (data == MAP_FAILED) return Failed("mmap");
  return std::make_unique<MappedRegion>(response->registered().region_id(),
                                        std::span<std::byte>(static_cast<std::byte*>(data), size));
}

absl::StatusOr<v1::MemoryResponse> MemoryLink::Ask(const v1::MemoryRequest& request, int sent,
                                                   service::Descriptor* received, const RetryBudget& budget) {
  absl::MutexLock lock(&mutex_);
  if (!service::SendPacket(socket_.get(), request.SerializeAsString(), sent, 0)) return Failed("memory socket");
  for (;;) {
    auto response = Receive(received, budget);
    if (!response.ok()) {
      Disconnect();  // a late answer would pass for the next request's
      return response;
    }
    if (response->has_unregistered()) continue;  // answers an earlier Unregister
    if (response->has_error()) return ToStatus(FromWire(response->error()));
    return response;
  }
}

void MemoryLink::Disconnect() { shutdown(socket_.get(), SHUT_RDWR); }

bool MemoryLink::IsConnected() const {
  pollfd polled = {socket_.get(), POLLRDHUP, 0};
  return poll(&polled, 1, 0) == 0;
}

void MemoryLink::Unregister(uint64_t region_id) {
  v1::MemoryRequest request;
  request.mutable_unregister_region()->set_region_id(region_id);
  const std::string packet = request.SerializeAsString();
  absl::MutexLock lock(&mutex_);
  // If this fails, the connection has ended, and the region with it.
  if (send(socket_.get(), packet.data(), packet.size(), MSG_NOSIGNAL) < 0) return;
  while (Take(nullptr).ok()) {  // discards earlier answers
  }
}

absl::StatusOr<v1::MemoryResponse> MemoryLink::Receive(service::Descriptor* descriptor, const RetryBudget& budget) {
  pollfd polled = {socket_.get(), POLLIN, 0};
  // A signal ends the poll without an answer.
  while (poll(&polled, 1, static_cast<int>(absl::ToInt64Milliseconds(budget.NextWait()))) <= 0) {
    if (budget.over()) return absl::UnavailableError("memory socket: no answer in time");
  }
  return Take(descriptor);
}

absl::StatusOr<v1::MemoryResponse> MemoryLink::Take(service::Descriptor* descriptor) {
  std::array<char, kMostPacketBytes> packet;
  const ssize_t size = service::ReceivePacket(socket_.get(), packet, descriptor, MSG_DONTWAIT);
  if (size < 0) return Failed("memory socket");
  if (size == 0) return absl::UnavailableError("the server ended the connection to its memory socket");
  v1::MemoryResponse response;
  if (static_cast<size_t>(size) > packet.size() || !response.ParseFromArray(packet.data(), static_cast<int>(size))) {
    return absl::InternalError("the memory socket answered with no message of the contract");
  }
  return response;
}

}  // namespace sortition::client

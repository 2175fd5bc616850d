// Packets to and from a memory socket.
#include "client/cpp/memory_link.h"

#include <poll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/time.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/cpp/errors.h"
#include "client/cpp/unix_socket.h"
#include "kernels/check.h"
#include "service/memory/ring.h"

namespace sortition::client {
namespace {

constexpr size_t kMostPacketBytes = 4096;
constexpr timeval kPatience = {5, 0};

absl::Status Failed(const char* what) { return absl::UnavailableError(absl::StrCat(what, ": ", std::strerror(errno))); }

// The descriptor that came with a message, if one did.
service::Descriptor DescriptorOf(msghdr* message) {
  cmsghdr* const header = CMSG_FIRSTHDR(message);
  if (header == nullptr || header->cmsg_type != SCM_RIGHTS || header->cmsg_len != CMSG_LEN(sizeof(int))) {
    return service::Descriptor();
  }
  int fd;
  std::memcpy(&fd, CMSG_DATA(header), sizeof(fd));
  return service::Descriptor(fd);
}

}  // namespace

MappedRegion::~MappedRegion() { SORTITION_CHECK(munmap(bytes_.data(), bytes_.size()) == 0); }

absl::StatusOr<std::unique_ptr<MemoryLink>> MemoryLink::Connect(const std::string& address) {
  auto socket = ConnectUnix(address, SOCK_SEQPACKET);
  if (!socket.ok()) return socket.status();
  setsockopt(socket->get(), SOL_SOCKET, SO_RCVTIMEO, &kPatience, sizeof(kPatience));
  setsockopt(socket->get(), SOL_SOCKET, SO_SNDTIMEO, &kPatience, sizeof(kPatience));
  std::unique_ptr<MemoryLink> link(new MemoryLink(*std::move(socket)));
  const auto response = link->Receive(nullptr, 0);
  if (!response.ok()) return response.status();
  if (response->has_error()) return ToStatus(FromWire(response->error()));
  if (!response->has_welcome()) return absl::InternalError("the memory socket did not begin with a welcome");
  link->token_ = response->welcome().token();
  link->most_bytes_ = response->welcome().most_bytes();
  return link;
}

absl::StatusOr<std::unique_ptr<MappedRegion>> MemoryLink::Register(uint64_t bytes) {
  v1::MemoryRequest request;
  request.mutable_register_region()->set_bytes(bytes);
  return Ask(request, bytes);
}

absl::StatusOr<std::unique_ptr<MappedRegion>> MemoryLink::OpenRing() {
  v1::MemoryRequest request;
  request.mutable_open_ring();
  return Ask(request, service::kRingPairBytes);
}

absl::StatusOr<std::unique_ptr<MappedRegion>> MemoryLink::Ask(const v1::MemoryRequest& request, uint64_t bytes) {
  const std::string packet = request.SerializeAsString();
  absl::MutexLock lock(&mutex_);
  if (send(socket_.get(), packet.data(), packet.size(), MSG_NOSIGNAL) < 0) return Failed("memory socket");
  for (;;) {
    service::Descriptor descriptor;
    const auto response = Receive(&descriptor, 0);
    if (!response.ok()) return response.status();
    if (response->has_unregistered()) continue;  // of a region that was given back before
    if (response->has_error()) return ToStatus(FromWire(response->error()));
    const uint64_t size = response->has_registered() ? response->registered().bytes() : response->ring_opened().bytes();
    if (!descriptor || size < bytes) return absl::InternalError("the memory socket answered what nobody asked");
    void* const data = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, descriptor.get(), 0);
    if (data == MAP_FAILED) return Failed("mmap");
    return std::make_unique<MappedRegion>(response->registered().region_id(),
                                          std::span<std::byte>(static_cast<std::byte*>(data), size));
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
  // Where it fails the connection is over, and the region with it.
  if (send(socket_.get(), packet.data(), packet.size(), MSG_NOSIGNAL) < 0) return;
  while (Receive(nullptr, MSG_DONTWAIT).ok()) {  // what came for others before
  }
}

absl::StatusOr<v1::MemoryResponse> MemoryLink::Receive(service::Descriptor* descriptor, int flags) {
  std::array<char, kMostPacketBytes> packet;
  iovec part = {packet.data(), packet.size()};
  alignas(cmsghdr) std::array<std::byte, CMSG_SPACE(sizeof(int))> control = {};
  msghdr message = {};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  if (descriptor != nullptr) {
    message.msg_control = control.data();
    message.msg_controllen = control.size();
  }
  const ssize_t size = recvmsg(socket_.get(), &message, flags | MSG_CMSG_CLOEXEC);
  if (size < 0) return Failed("memory socket");
  if (size == 0) return absl::UnavailableError("the server ended the connection to its memory socket");
  if (descriptor != nullptr) *descriptor = DescriptorOf(&message);
  v1::MemoryResponse response;
  if ((message.msg_flags & MSG_TRUNC) != 0 || !response.ParseFromArray(packet.data(), static_cast<int>(size))) {
    return absl::InternalError("the memory socket answered with no message of the contract");
  }
  return response;
}

}  // namespace sortition::client

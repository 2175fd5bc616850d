// Control messages, and SO_PEERCRED.
#include "service/memory/packet.h"

#include <sys/socket.h>

#include <array>
#include <cstddef>
#include <cstring>
#include <utility>

#include "kernels/check.h"

namespace sortition::service {

bool SendPacket(int socket, std::string_view packet, int descriptor, int flags) {
  iovec part = {const_cast<char*>(packet.data()), packet.size()};  // sendmsg only reads
  alignas(cmsghdr) std::array<std::byte, CMSG_SPACE(sizeof(int))> control = {};
  msghdr message = {};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  if (descriptor >= 0) {
    message.msg_control = control.data();
    message.msg_controllen = control.size();
    cmsghdr* const header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(int));
    std::memcpy(CMSG_DATA(header), &descriptor, sizeof(descriptor));
  }
  return sendmsg(socket, &message, flags | MSG_NOSIGNAL) == static_cast<ssize_t>(packet.size());
}

ssize_t ReceivePacket(int socket, std::span<char> packet, Descriptor* descriptor, int flags) {
  iovec part = {packet.data(), packet.size()};
  alignas(cmsghdr) std::array<std::byte, CMSG_SPACE(sizeof(int))> control = {};
  msghdr message = {};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  if (descriptor != nullptr) {
    message.msg_control = control.data();
    message.msg_controllen = CMSG_LEN(sizeof(int));  // not CMSG_SPACE: with padding it would hold two
  }
  const ssize_t size = recvmsg(socket, &message, flags | MSG_TRUNC | MSG_CMSG_CLOEXEC);
  const cmsghdr* const header = size < 0 ? nullptr : CMSG_FIRSTHDR(&message);
  if (header == nullptr || header->cmsg_type != SCM_RIGHTS) return size;
  int fd;
  std::memcpy(&fd, CMSG_DATA(header), sizeof(fd));
  Descriptor received(fd);
  if ((message.msg_flags & MSG_CTRUNC) == 0) *descriptor = std::move(received);
  return size;
}

uid_t UserOfPeer(int socket) {
  ucred peer;
  socklen_t size = sizeof(peer);
  SORTITION_CHECK(getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &size) == 0);
  return peer.uid;
}

}  // namespace sortition::service

// Code that tests of the memory socket share.
#pragma once

#include <sys/socket.h>

#include <cstddef>
#include <cstring>
#include <filesystem>
#include <string>
#include <thread>
#include <vector>

#include "absl/time/clock.h"
#include "absl/time/time.h"

namespace sortition::server {

// Blocks until `wanted` is true; false after 20 seconds.
template <typename Wanted>
bool Becomes(Wanted wanted) {
  for (const absl::Time end = absl::Now() + absl::Seconds(20); absl::Now() < end;) {
    if (wanted()) return true;
    std::this_thread::yield();
  }
  return false;
}

// Returns the number of descriptors of this process, which includes the server's.
inline size_t OpenDescriptors() {
  const std::filesystem::directory_iterator descriptors("/proc/self/fd");
  return static_cast<size_t>(std::distance(begin(descriptors), end(descriptors)));
}

// Sends a packet with the same descriptor `count` times. False if not all of it is taken.
inline bool SendFlood(int socket, std::string packet, int descriptor, size_t count) {
  iovec part = {packet.data(), packet.size()};
  const std::vector<int> descriptors(count, descriptor);
  const size_t bytes = count * sizeof(int);
  std::vector<std::max_align_t> control(CMSG_SPACE(bytes) / sizeof(std::max_align_t) + 1);
  msghdr message = {};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control.data();
  message.msg_controllen = CMSG_SPACE(bytes);
  cmsghdr* const header = CMSG_FIRSTHDR(&message);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(bytes);
  std::memcpy(CMSG_DATA(header), descriptors.data(), bytes);
  return sendmsg(socket, &message, MSG_NOSIGNAL) == static_cast<ssize_t>(packet.size());
}

}  // namespace sortition::server

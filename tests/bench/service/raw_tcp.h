// The floor under a step over loopback: the same bytes through a plain TCP socket, and an answer of a step's size back.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <span>

namespace sortition::bench {

// A forked process that reads requests and answers each, and our end of the connection to it. Aborts on any socket
// error. Not thread-safe. Create it before the process has threads.
class RawTcpPeer {
 public:
  RawTcpPeer();
  ~RawTcpPeer();
  RawTcpPeer(const RawTcpPeer&) = delete;
  RawTcpPeer& operator=(const RawTcpPeer&) = delete;

  // Sends `bytes` and waits until the peer has read all of them and has sent `answer_bytes` back.
  void RoundTrip(std::span<const std::byte> bytes, size_t answer_bytes);

 private:
  int socket_ = -1;
  pid_t peer_ = -1;
};

}  // namespace sortition::bench

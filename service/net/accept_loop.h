// Accepts connections and passes them to gRPC or to the memory server.
//
// Keeps a reserve of file descriptors, so that a flood of connections cannot exhaust them. Admits only processes of
// listed users to a Unix socket. gRPC's own listeners do not recover once accept() has failed for lack of a descriptor
// (CVE-2023-4785 in releases before 1.57).
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "service/log/log.h"
#include "service/memory/descriptor.h"
#include "service/net/listen_socket.h"

namespace sortition::server {

// Counts the connections that are still open. gRPC, which owns most of them, does not report when it closes one. Not
// thread-safe.
class ConnectionCount {
 public:
  // `most`: the largest count; 0 = no bound.
  explicit ConnectionCount(uint32_t most) : most_(most) {}

  uint32_t most() const { return most_; }

  // Counts `socket`, which its owner closes later, and returns true; or returns false if there are too many. At the
  // bound it looks for closed sockets among the counted ones.
  bool Admit(int socket);

 private:
  const uint32_t most_;
  absl::flat_hash_map<int, ino_t>
      open_;  // by descriptor; a descriptor's number is used again after close, its inode's is not
};

// One thread for all listeners. Not thread-safe.
class AcceptLoop {
 public:
  struct Listener {
    std::unique_ptr<ListenSocket> socket;
    // Takes each connection. Called by the loop's thread; must not block.
    std::function<void(service::Descriptor)> take;
    bool counts = true;  // its connections count towards `most_connections`
  };

  // Descriptors that connections never get. They serve logs, the metrics endpoint and certificates that are read again.
  static constexpr int kReservedDescriptors = 40;

  // FAILED_PRECONDITION if the process may not open enough descriptors to serve at all.
  static absl::Status CheckDescriptorLimit();

  // Accepts until Stop. The objects behind `take` live until Stop has returned. Closes a connection at once if only the
  // reserved descriptors are free, if it comes over a Unix socket from a user that `admits` rejects, or if
  // `most_connections` of listeners that count are open (0 = no bound). `log` is not owned and outlives the loop.
  AcceptLoop(std::vector<Listener> listeners, std::function<bool(uid_t)> admits, uint32_t most_connections, Log* log);
  ~AcceptLoop();

  // Closes the listeners and blocks until the thread has ended. Idempotent.
  void Stop();

  std::vector<ListenAddress> addresses() const;

 private:
  void Run();
  void Accept(const Listener& listener);

  std::vector<Listener> listeners_;
  const std::function<bool(uid_t)> admits_;
  ConnectionCount connections_;  // used by the thread alone
  Log& log_;
  const int descriptor_limit_;  // connections get descriptors below this one
  const int stop_event_;
  std::thread thread_;
};

}  // namespace sortition::server

// Accepts connections and hands them on, to gRPC for the most part, so that no flood of connections can take the
// process's last file descriptor, and only processes of users who may are served over a Unix socket.
//
// gRPC's own listeners do not recover once accept() has failed for want of a descriptor (CVE-2023-4785 in releases
// before 1.57).
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
#include "service/memory/descriptor.h"
#include "service/server/listen_socket.h"
#include "service/server/log.h"

namespace sortition::server {

// Not thread-safe.
class ConnectionCount {
 public:
  // `most` 0 = any number.
  explicit ConnectionCount(uint32_t most) : most_(most) {}

  uint32_t most() const { return most_; }

  // Whether there may be one more; counts `socket`, which stays open until its owner closes it, if there may. Looks at
  // all that are counted where there seem to be too many.
  bool Admit(int socket);

 private:
  const uint32_t most_;
  absl::flat_hash_map<int, ino_t> open_;  // by descriptor: a closed one's number is used again, its inode's is not
};

// One thread for all listeners. Not thread-safe.
class AcceptLoop {
 public:
  struct Listener {
    std::unique_ptr<ListenSocket> socket;
    // Given each connection, on the loop's thread; must not block.
    std::function<void(service::Descriptor)> take;
    bool counts = true;  // its connections, among those there may be
  };

  // Descriptors that connections may never take: logs, the metrics endpoint's own connections, certificates read again.
  static constexpr int kReservedDescriptors = 40;

  // Whether the process may have enough descriptors open to serve at all.
  static absl::Status CheckDescriptorLimit();

  // Accepts until Stop. Those that take connections outlive the loop's Stop. A connection that arrives while only the
  // reserved descriptors are free is closed at once, and so is one to a Unix socket from a process of a user who is not
  // admitted, or one too many: there may be `most_connections`, 0 = any number, of listeners that count. `log` is not
  // owned and outlives the loop.
  AcceptLoop(std::vector<Listener> listeners, std::function<bool(uid_t)> admits, uint32_t most_connections, Log* log);
  ~AcceptLoop();

  // Closes the listeners and waits for the thread. Idempotent.
  void Stop();

  std::vector<ListenAddress> addresses() const;

 private:
  void Run();
  void Accept(const Listener& listener);

  std::vector<Listener> listeners_;
  const std::function<bool(uid_t)> admits_;
  ConnectionCount connections_;  // of the thread
  Log& log_;
  const int descriptor_limit_;  // connections get only descriptors below
  const int stop_event_;
  std::thread thread_;
};

}  // namespace sortition::server

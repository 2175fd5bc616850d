// The memory socket: hands out memory regions to workers on this machine (memory.proto). What regions are, and how many
// there may be, is service/memory/region_table.h.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>
#include <span>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_set.h"
#include "absl/synchronization/mutex.h"
#include "service/engine.h"
#include "service/memory/descriptor.h"
#include "service/server/log.h"
#include "sortition/v1/memory.pb.h"

namespace sortition::server {

// One thread for all connections. A client that waits for the clearing of its pages makes the others wait; one that
// does not read its answers loses its connection. Thread-safe.
class MemoryServer {
 public:
  // `engine` and `log` are not owned and outlive the server.
  MemoryServer(service::Engine* engine, Log* log);
  ~MemoryServer();

  // A connection that was accepted; takes the descriptor. Refused, and closed, after Stop.
  void Take(service::Descriptor connection);

  // Ends every connection, and with it its regions. Idempotent; called by one thread.
  void Stop();

 private:
  struct Client;
  class Wakeup;

  void Run();
  void Admit(service::Descriptor connection);
  void Receive(Client* client);
  void Answer(Client* client, const v1::MemoryRequest& request);
  void Register(Client* client, uint64_t bytes);
  void Unregister(Client* client, uint64_t region_id);
  void AnswerReleased(Client* client);

  service::Engine& engine_;
  Log& log_;
  const std::shared_ptr<Wakeup> wakeup_;  // shared with regions that are still read
  std::list<Client> clients_;             // of the thread
  absl::Mutex mutex_;
  std::vector<service::Descriptor> taken_ ABSL_GUARDED_BY(mutex_);
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace sortition::server

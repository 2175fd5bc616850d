// The memory socket: gives memory regions and rings to workers on this machine (memory.proto). Regions and their limits
// are service/memory/region_table.h.
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
#include "service/log/log.h"
#include "service/memory/descriptor.h"
#include "service/net/authorization.h"
#include "service/process/config.h"
#include "service/steady_cond_var.h"
#include "sortition/v1/memory.pb.h"

namespace sortition::server {

// One thread serves all connections. While it clears one client's pages, or waits for a device's driver, the other
// clients wait. A client that does not read its answers loses its connection. Thread-safe.
class MemoryServer {
 public:
  // `authorization`, `engine` and `log` are not owned and outlive the server.
  MemoryServer(const Config& config, const Authorization* authorization, service::Engine* engine, Log* log);
  ~MemoryServer();

  // Takes an accepted connection. Closes it after Stop.
  void Take(service::Descriptor connection);

  // The number of open streams over rings.
  uint32_t rings() const;
  // Tells every stream over rings to end, and refuses new ones.
  void StartDraining();
  // Blocks until no stream over rings is left, at most for `grace`. Returns the number left.
  uint32_t AwaitRings(absl::Duration grace);

  // Ends every connection and its regions. Idempotent; called by one thread.
  void Stop();

 private:
  struct Peer;  // one connection
  class WakeEvent;

  void Run();
  void Admit(service::Descriptor connection);
  void Receive(Peer* peer);
  // `descriptor` came with the request, or is empty.
  void Answer(Peer* peer, const v1::MemoryRequest& request, const service::Descriptor& descriptor);
  void Register(Peer* peer, uint64_t bytes);
  void RegisterDevice(Peer* peer, const v1::RegisterDeviceRegion& request, const service::Descriptor& descriptor);
  bool TakesDeviceMemory() const { return engine_.limits().connection_device_bytes != 0; }
  void Unregister(Peer* peer, uint64_t region_id);
  void OpenRing(Peer* peer);
  void RemovePeers();
  // Marks the connections whose streams over rings have ended, and begins to drain the others at a shutdown.
  void EndRings();
  // Marks the connections of clients that the list no longer names.
  void EndRevoked();
  void AnswerReleased(Peer* peer);

  const Config config_;
  const Authorization& authorization_;
  service::Engine& engine_;
  Log& log_;
  const std::shared_ptr<WakeEvent> wake_event_;  // shared with regions that rows still read
  std::list<Peer> peers_;                        // used by the thread alone
  mutable absl::Mutex mutex_;
  std::vector<service::Descriptor> taken_ ABSL_GUARDED_BY(mutex_);
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  bool draining_ ABSL_GUARDED_BY(mutex_) = false;
  uint32_t rings_ ABSL_GUARDED_BY(mutex_) = 0;
  service::SteadyCondVar rings_ended_;  // when rings_ becomes 0
  std::thread thread_;
};

}  // namespace sortition::server

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
#include "service/server/authorization.h"
#include "service/server/config.h"
#include "service/server/log.h"
#include "service/steady_cond_var.h"
#include "sortition/v1/memory.pb.h"

namespace sortition::server {

// One thread for all connections. A client that waits for the clearing of its pages, or for a device's driver, makes
// the others wait; one that does not read its answers loses its connection. Thread-safe.
class MemoryServer {
 public:
  // `authorization`, `engine` and `log` are not owned and outlive the server.
  MemoryServer(const Config& config, const Authorization* authorization, service::Engine* engine, Log* log);
  ~MemoryServer();

  // A connection that was accepted; takes the descriptor. Refused, and closed, after Stop.
  void Take(service::Descriptor connection);

  // Streams over rings open now.
  uint32_t rings() const;
  // Tells every stream over rings to end, and refuses new ones.
  void StartDraining();
  // Returns when no stream over rings is left, or after `grace`; how many were left.
  uint32_t AwaitRings(absl::Duration grace);

  // Ends every connection, and with it its regions. Idempotent; called by one thread.
  void Stop();

 private:
  struct Peer;
  class WakeEvent;

  void Run();
  void Admit(service::Descriptor connection);
  void Receive(Peer* peer);
  // `descriptor`: that came with the request, if one did.
  void Answer(Peer* peer, const v1::MemoryRequest& request, const service::Descriptor& descriptor);
  void Register(Peer* peer, uint64_t bytes);
  void RegisterDevice(Peer* peer, const v1::RegisterDeviceRegion& request, const service::Descriptor& descriptor);
  bool TakesDeviceMemory() const { return engine_.limits().connection_device_bytes != 0; }
  void Unregister(Peer* peer, uint64_t region_id);
  void OpenRing(Peer* peer);
  void RemovePeers();
  // Of the clients whose streams over rings have ended.
  void EndRings();
  // Connections of clients that the list does not name any more.
  void EndRevoked();
  void AnswerReleased(Peer* peer);

  const Config config_;
  const Authorization& authorization_;
  service::Engine& engine_;
  Log& log_;
  const std::shared_ptr<WakeEvent> wake_event_;  // shared with regions that are still read
  std::list<Peer> peers_;                        // of the thread
  mutable absl::Mutex mutex_;
  std::vector<service::Descriptor> taken_ ABSL_GUARDED_BY(mutex_);
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  bool draining_ ABSL_GUARDED_BY(mutex_) = false;
  uint32_t rings_ ABSL_GUARDED_BY(mutex_) = 0;
  service::SteadyCondVar rings_ended_;  // when rings_ becomes 0
  std::thread thread_;
};

}  // namespace sortition::server

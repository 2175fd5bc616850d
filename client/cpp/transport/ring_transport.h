// Streams over rings in memory shared with a server on this machine (memory.proto, OpenRing).
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "client/cpp/transport/memory_link.h"
#include "client/cpp/transport/shared_memory.h"
#include "client/cpp/transport/transport.h"
#include "sortition/options.h"

namespace sortition::client {

class RingStream;

// Starts streams over rings, with a thread for each. The thread sleeps while a caller in Poller::Poll reads the
// answers itself. Targets are memory sockets, "unix:PATH".
class RingConnector final : public Connector {
 public:
  explicit RingConnector(const ClientOptions& options);
  // Blocks until every stream has ended.
  ~RingConnector() override;

  std::shared_ptr<Transport> Start(size_t target, uint64_t stream, StreamEvents* events) override;

  // A ring and the memory for rows, over one connection to a memory socket.
  struct Opened {
    std::unique_ptr<MappedRegion> ring;
    std::shared_ptr<SharedMemory> memory;
  };
  // Starts a stream over a ring that is already open.
  std::shared_ptr<Transport> Start(Opened opened, uint64_t stream, StreamEvents* events);

 private:
  friend class RingStream;
  std::shared_ptr<Transport> Start(std::shared_ptr<RingStream> stream);
  struct Live {
    std::shared_ptr<RingStream> stream;
    std::thread thread;
  };
  void OnStreamOver(RingStream* stream);
  void JoinFinished();

  const std::vector<std::string> targets_;
  const uint64_t shared_memory_bytes_;
  const absl::Duration connect_timeout_;
  const std::optional<uint32_t> memory_server_user_;
  const absl::Duration spin_;
  absl::Mutex mutex_;
  std::vector<Live> live_ ABSL_GUARDED_BY(mutex_);
  std::vector<Live> finished_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace sortition::client

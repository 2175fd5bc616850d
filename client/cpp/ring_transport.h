// Streams over rings in memory shared with a server on this machine (memory.proto, OpenRing).
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "client/cpp/options.h"
#include "client/cpp/transport.h"

namespace sortition::client {

class RingStream;

// A thread for each stream, which sleeps while a caller waits for its step (Transport::Poll) and reads the answers
// itself. Targets are memory sockets, "unix:PATH".
class RingConnector {
 public:
  explicit RingConnector(const ClientOptions& options);
  // Blocks until every stream has ended.
  ~RingConnector();

  std::shared_ptr<Transport> Start(size_t target, uint64_t stream, StreamEvents* events);

 private:
  friend class RingStream;
  struct Live {
    std::shared_ptr<RingStream> stream;
    std::thread thread;
  };
  void OnStreamOver(RingStream* stream);
  void JoinFinished();

  const std::vector<std::string> targets_;
  const uint64_t shared_memory_bytes_;
  const absl::Duration connect_timeout_;
  const absl::Duration spin_;
  absl::Mutex mutex_;
  std::vector<Live> live_ ABSL_GUARDED_BY(mutex_);
  std::vector<Live> finished_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace sortition::client

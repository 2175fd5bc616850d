// Streams over gRPC, on the raw byte path: rows go out from the caller's memory.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "client/cpp/grpc_channel.h"
#include "client/cpp/options.h"
#include "client/cpp/ring_transport.h"
#include "client/cpp/transport.h"
#include "grpcpp/completion_queue.h"

namespace sortition::client {

// One thread and one completion queue for all its streams. The memory that a stream shares with its server is got by a
// thread of the stream's own, which then passes the welcome on, so that a server that is slow at it holds up no other
// stream. Each stream has a channel of its own, so that giving up a stream gives up its connection, and with it every
// byte that waits to be written. Under TransportKind::kAuto a stream to a server on this machine moves to a ring before
// its welcome is passed on, if the server has one left.
class GrpcConnector final : public Connector {
 public:
  explicit GrpcConnector(const ClientOptions& options);
  // Blocks until every stream has ended.
  ~GrpcConnector() override;

  std::shared_ptr<Transport> Start(size_t target, uint64_t stream, StreamEvents* events) override;

 private:
  friend class GrpcStream;
  void Run();
  void OnStreamOver();

  const std::vector<std::string> targets_;
  const TransportKind kind_;
  const uint64_t shared_memory_bytes_;
  const absl::Duration connect_timeout_;
  const std::optional<uint32_t> memory_server_user_;
  const std::string token_;
  const ChannelOptions channel_;
  std::optional<RingConnector> rings_;  // where streams may move to one
  std::atomic<bool> stays_ = false;     // a message did not fit a ring: none is moved any more
  grpc::CompletionQueue queue_;
  absl::Mutex mutex_;
  uint32_t live_streams_ ABSL_GUARDED_BY(mutex_) = 0;
  std::thread thread_;
};

}  // namespace sortition::client

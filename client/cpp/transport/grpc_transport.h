// Streams over gRPC. Messages are sent as raw bytes, so that rows are read from the caller's memory.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "client/cpp/transport/event_queue.h"
#include "client/cpp/transport/grpc_channel.h"
#include "client/cpp/transport/ring_transport.h"
#include "client/cpp/transport/transport.h"
#include "sortition/options.h"

namespace sortition::client {

// Starts gRPC streams, with one queue of events for all, which waiting callers read themselves.
//
// A separate thread gets the memory that a stream shares with its server, and then passes the welcome on, so that a
// slow server delays no other stream. Each stream has a separate channel: ending a stream closes its connection, and
// drops all bytes that wait to be written. Under TransportKind::kAuto a stream to a server on this machine moves to a
// ring before its welcome is passed on, if the server has one left.
class GrpcConnector final : public Connector {
 public:
  explicit GrpcConnector(const ClientOptions& options);
  // Blocks until every stream has ended.
  ~GrpcConnector() override;

  std::shared_ptr<Transport> Start(size_t target, uint64_t stream, StreamEvents* events) override;

 private:
  friend class GrpcStream;
  void OnStreamOver();

  const std::vector<std::string> targets_;
  const TransportKind kind_;
  const uint64_t shared_memory_bytes_;
  const absl::Duration connect_timeout_;
  const std::optional<uint32_t> memory_server_user_;
  const std::string token_;
  const ChannelOptions channel_;
  std::optional<RingConnector> rings_;  // set if streams may move to a ring
  std::atomic<bool> stays_ = false;     // set when a message did not fit a ring: later streams do not move
  absl::Mutex mutex_;
  uint32_t live_streams_ ABSL_GUARDED_BY(mutex_) = 0;
  const std::shared_ptr<EventQueue> events_;
};

}  // namespace sortition::client

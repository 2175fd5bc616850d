// Streams to the service's own core in this process: same state machine, same kernels, same answers, no sockets.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/functional/any_invocable.h"
#include "absl/synchronization/mutex.h"
#include "client/cpp/options.h"
#include "client/cpp/transport.h"
#include "service/clock.h"
#include "service/engine.h"
#include "service/observer.h"

namespace sortition::client {

// Runs tasks one after the other on a separate thread. Thread-safe.
class SerialTasks {
 public:
  SerialTasks();
  // Runs every task posted before, then joins.
  ~SerialTasks();
  void Post(absl::AnyInvocable<void()> task);

 private:
  void Run();

  absl::Mutex mutex_;
  std::deque<absl::AnyInvocable<void()>> tasks_ ABSL_GUARDED_BY(mutex_);
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

// Sequences are kept over its streams, as a server does. The device and its threads exist from the first stream on.
class InProcessConnector final : public Connector {
 public:
  explicit InProcessConnector(const ClientOptions& options);
  // Blocks until every stream has ended.
  ~InProcessConnector() override;

  std::shared_ptr<Transport> Start(size_t target, uint64_t stream, StreamEvents* events) override;

 private:
  struct Core;
  const uint32_t threads_;
  std::unique_ptr<Core> core_;
};

}  // namespace sortition::client

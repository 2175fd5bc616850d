// A completion queue of the server's: who deals with its events, and when it may end.
//
// Nothing in this process may wait for sockets but the threads of these queues: gRPC hands what another thread of its
// own reads, one that waits for callbacks or for synchronous calls, to the queue's thread, which costs a stream a
// sixth of its throughput (docs/benchmarks/wire.md).
#pragma once

#include <grpcpp/server_builder.h>

#include <memory>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"

namespace sortition::server {

// What comes of an operation.
class QueueEvent {
 public:
  // What the operation is begun with.
  void* tag() { return this; }
  // `ok` as CompletionQueue::Next has it. May destroy the event.
  virtual void Run(bool ok) = 0;

 protected:
  ~QueueEvent() = default;
};

// Thread-safe. Life: made with a builder -> Serve in a thread, or Poll now and then -> AwaitNoCalls once the server has
// shut down -> ShutDown -> destroyed. Where the server was not started the destructor does the rest.
class CallQueue {
 public:
  explicit CallQueue(grpc::ServerBuilder* builder);
  // No thread serves the queue any more, and its server is gone.
  ~CallQueue();
  CallQueue(const CallQueue&) = delete;
  CallQueue& operator=(const CallQueue&) = delete;

  grpc::ServerCompletionQueue* get() const { return queue_.get(); }

  // Runs events as they come. Blocks until the queue has been shut down.
  void Serve();
  // Runs the events that have come. Does not block. For a queue whose calls may wait until it is called again.
  void Poll();

  // A call is counted from before its first operation until no event of it is to come.
  void AddCall();
  void RemoveCall();
  // Blocks until none is counted; events must be run meanwhile.
  void AwaitNoCalls();

  // No operation may begin any more, and none is outstanding. Once.
  void ShutDown();

 private:
  const std::unique_ptr<grpc::ServerCompletionQueue> queue_;
  bool shut_down_ = false;
  absl::Mutex mutex_;
  int calls_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace sortition::server

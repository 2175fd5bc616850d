// A completion queue of gRPC that callers read themselves while they wait for an answer.
#pragma once

#include <grpcpp/alarm.h>
#include <grpcpp/completion_queue.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "client/cpp/transport/transport.h"

namespace sortition::client {

// One thread at a time reads the queue: a caller that waits, or the queue's own thread while no caller does. A caller
// that reads its own answer is woken up once, by the socket. If a thread read for it, it would be woken up a second
// time.
//
// The thread stays away from the queue for kLinger after a caller has left, so that it need not be sent away when the
// next one comes, unless somebody waits for events who does not read.
//
// Thread-safe. Operations are begun on get(), none after Stop, and their tags are not null.
class EventQueue final : public Poller {
 public:
  static constexpr absl::Duration kLinger = absl::Milliseconds(50);
  // Interval at which a caller looks at `done`, which other threads may make true.
  static constexpr absl::Duration kLook = absl::Milliseconds(5);

  // `run` runs an event, on the thread that has read it, without locks.
  explicit EventQueue(std::function<void(void* tag, bool ok)> run);
  // Stop has been called.
  ~EventQueue() override = default;
  EventQueue(const EventQueue&) = delete;
  EventQueue& operator=(const EventQueue&) = delete;

  grpc::CompletionQueue* get() { return &queue_; }

  // Ends the thread, and blocks until no caller reads. Called once, when no operation is outstanding, on another thread
  // than one that reads.
  void Stop();

  // Makes the next thread that would wait for an event begin an operation first. Called while an event runs.
  void BeginLater(std::function<void()> begin);

  // Makes the queue's thread read while no caller does, because some waiting thread does not read.
  void Attend();
  // Sends the thread away from the queue: a caller comes at once.
  void Expect();
  // Reads until `done` is true, or not at all after Stop. Meanwhile another caller may read for this one.
  void Poll(absl::FunctionRef<bool()> done, absl::FunctionRef<bool()> awaited) override;

 private:
  void Run();
  void ReadEvents(absl::FunctionRef<bool()> done) ABSL_LOCKS_EXCLUDED(mutex_);
  void SendThreadAway() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void RunEvent(void* tag, bool ok);
  void BeginOperations();
  bool IsThreadsTurn() const ABSL_SHARED_LOCKS_REQUIRED(mutex_) {
    return !reading_ && (stopping_ || (asked_ && callers_ == 0));
  }
  bool HasNoCallers() const ABSL_SHARED_LOCKS_REQUIRED(mutex_) { return callers_ == 0; }

  const std::function<void(void* tag, bool ok)> run_;
  grpc::CompletionQueue queue_;
  absl::Mutex mutex_;
  grpc::Alarm alarm_ ABSL_GUARDED_BY(mutex_);    // its event, which has no tag, wakes up the one who reads
  bool waking_ ABSL_GUARDED_BY(mutex_) = false;  // the event is under way
  bool reading_ ABSL_GUARDED_BY(mutex_) = false;
  bool thread_reads_ ABSL_GUARDED_BY(mutex_) = false;
  bool asked_ ABSL_GUARDED_BY(mutex_) = true;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  uint32_t callers_ ABSL_GUARDED_BY(mutex_) = 0;                    // in Poll
  absl::Time left_ ABSL_GUARDED_BY(mutex_) = absl::InfinitePast();  // when the last caller came or left
  std::vector<std::function<void()>> later_ ABSL_GUARDED_BY(mutex_);
  std::atomic<bool> has_later_ = false;
  std::atomic<bool> has_followers_ = false;  // callers wait while another one reads
  std::atomic<bool> sent_away_ = false;      // the thread is to leave the queue
  std::thread thread_;
};

}  // namespace sortition::client

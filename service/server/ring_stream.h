// A sampling stream over a pair of rings in shared memory: the same session as behind gRPC, without its sockets.
#pragma once

#include <atomic>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "service/engine.h"
#include "service/memory/region_table.h"
#include "service/memory/ring.h"
#include "service/server/log.h"
#include "service/server/stream_log.h"
#include "service/stream/session.h"

namespace sortition::server {

// A thread of its own, which spins for a while before it sleeps if the worker's messages come that soon. Thread-safe.
class RingStream final : public service::SessionSink, public std::enable_shared_from_this<RingStream> {
 public:
  struct Options {
    service::Engine* engine;                 // not owned; outlives the stream
    Log* log;                                // the same
    std::string peer;                        // where the client is, for the log
    std::string tenant;                      // the caller's identity
    std::function<bool()> still_authorized;  // asked now and then, by one thread
    absl::Duration spin;                     // how long it looks for the next request before it sleeps
    absl::Duration drain_grace;
    std::function<void()> on_ended;  // the client has broken the rules, or the stream has come to its end; any thread
  };

  // `memory`: a pair of rings, zeros.
  static std::shared_ptr<RingStream> Start(const Options& options, std::shared_ptr<const service::Region> memory);
  ~RingStream() override;

  // Ends the stream; blocks until its thread has ended. Once, by whoever started it, not on its thread.
  void Stop();
  // As SamplingCall::Drain.
  void Drain(v1::DrainingNotice::Cause cause, absl::Duration grace);
  // It has come to its end by itself.
  bool ended() const { return ended_.load(std::memory_order_acquire); }

  void Send(v1::StreamResponse message, service::SentRelease release) override;

 private:
  RingStream(const Options& options, std::shared_ptr<const service::Region> memory);
  void Run();
  // One round; false if the stream is over.
  bool Serve();
  bool TakeMessage();
  void Rest();
  // Writes what waits, and tells the session what has left.
  bool Write();
  void WriteWaiting() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool HasRoom();
  bool HasSaidAll();
  bool CheckTime();

  const Options options_;
  const std::shared_ptr<const service::Region> memory_;
  const service::RingPair rings_;
  service::RingReader reader_;     // of the thread
  std::string message_;            // of the thread
  absl::Time opened_;              // of the thread
  const char* how_ = "by client";  // of the thread
  StreamLog stream_log_;           // of the thread
  std::unique_ptr<service::Session> session_;
  std::atomic<bool> stopping_ = false;
  std::atomic<bool> ended_ = false;
  std::atomic<bool> draining_ = false;
  service::SpinChoice spins_;

  absl::Mutex mutex_;
  absl::Time answered_ ABSL_GUARDED_BY(mutex_);  // when the last answer was written
  service::RingWriter writer_ ABSL_GUARDED_BY(mutex_);
  struct Encoded {
    std::string bytes;
    service::SentRelease release;
  };
  std::deque<Encoded> waiting_ ABSL_GUARDED_BY(mutex_);
  uint64_t waiting_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  absl::Time waiting_since_ ABSL_GUARDED_BY(mutex_) = absl::InfiniteFuture();
  service::SentRelease sent_ ABSL_GUARDED_BY(mutex_);  // that the session has not been told of
  bool broken_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Time drain_deadline_ ABSL_GUARDED_BY(mutex_) = absl::InfiniteFuture();
  std::thread thread_;
};

}  // namespace sortition::server

// A sampling stream over a pair of rings in shared memory: the same session as behind gRPC, without sockets.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <thread>

#include "absl/time/time.h"
#include "service/calls/stream_shell.h"
#include "service/engine.h"
#include "service/log/log.h"
#include "service/memory/region_table.h"
#include "service/memory/ring.h"

namespace sortition::server {

// Has one thread. If messages follow each other quickly, it polls for the next one before it sleeps. Drain,
// BeginStop, Stop and ended are called by one thread.
class RingStream {
 public:
  struct Options {
    service::Engine* engine;                 // not owned; outlives the stream
    Log* log;                                // likewise
    std::string peer;                        // the worker's address, for the log
    std::string tenant;                      // the caller's identity
    std::function<bool()> still_authorized;  // called by the stream's thread, each round
    absl::Duration spin;                     // the longest time to look for a message before sleeping
    absl::Duration drain_grace;              // of a stream that has reached its greatest age
    std::function<void()> on_ended;          // called by the stream's thread when the stream is over
  };

  // `memory`: kRingPairBytes, all zero.
  RingStream(const Options& options, std::shared_ptr<const service::Region> memory);
  // Stop has been called.
  ~RingStream();
  RingStream(const RingStream&) = delete;
  RingStream& operator=(const RingStream&) = delete;

  // Tells the stream to end, and returns.
  void BeginStop();
  // Ends the stream; blocks until its thread has ended. Once, not on its thread.
  void Stop();
  // As StreamShell::Drain.
  void Drain(v1::DrainingNotice::Cause cause, absl::Duration grace);
  // The stream is over: Stop does not block for long.
  bool ended() const { return ended_.load(std::memory_order_acquire); }

 private:
  class Transport;

  RingStream(const Options& options, std::shared_ptr<const service::Region> memory, const service::RingPair& rings,
             std::unique_ptr<Transport> transport);
  void Run();
  // One round; false if the stream is over.
  bool Serve();
  bool CheckTime();
  bool TakeMessage();
  void AwaitMessage();

  const Options options_;
  const std::shared_ptr<const service::Region> memory_;
  service::RingWords* const request_words_;
  Transport& transport_;           // the shell's
  service::RingReader reader_;     // used by the thread
  std::string message_;            // used by the thread
  const char* how_ = "by client";  // used by the thread: how the stream has ended
  StreamShell shell_;
  std::atomic<bool> stopping_ = false;
  std::atomic<bool> ended_ = false;
  std::thread thread_;
};

}  // namespace sortition::server

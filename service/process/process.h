// Settings, signals and files of the process: the allocator and its memory, gRPC's threads, signals, the port file, the
// file of the checkpoint key.
#pragma once

#include <csignal>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "service/clock.h"
#include "service/text/checkpoint.h"

namespace sortition::server {

// Makes the allocator keep freed message buffers. By default glibc returns the pages of every freed message to the
// kernel and faults them in again for the next one, which halves the throughput of 1 MB messages. Takes two arenas a
// core in place of eight, for each keeps what was freed in it. No effect on other C libraries. Call once, before other
// threads run.
void TuneAllocator();

// Gives memory back to the kernel that the allocator keeps, once it is much and stays free. A gigabyte takes 0.2
// seconds, in which threads wait that allocate from the same arena. So it rests 25 times as long after each look. glibc
// keeps the end of each thread's arena in any case, up to 64 MiB. No effect on other C libraries. Not thread-safe.
class FreedMemory {
 public:
  // `clock` is not owned and outlives this.
  explicit FreedMemory(const service::Clock* clock) : clock_(*clock) {}

  // Called periodically, by a thread that no other waits for.
  void Look();

  static constexpr absl::Duration kPeriod = absl::Milliseconds(250);

 private:
  static constexpr uint64_t kMostFree = 32 << 20;  // beyond the least that was free
  static constexpr int kLooks = 20;                // at which more was free, before it is given back
  static constexpr int kRest = 25;

  const service::Clock& clock_;
  absl::Time next_ = absl::InfinitePast();
  uint64_t least_ = UINT64_MAX;  // free at any look, and after the last return
  int looks_ = 0;                // at which more was free, one after the other
};

// Makes the threads of streams read sockets themselves, as gRPC did before 1.60. Later versions read on threads of a
// pool and hand each event over, which doubles the processor time of a small step. Adds to the
// variable GRPC_EXPERIMENTS, unless it names event_engine_listener. No effect on older versions. Call once, before gRPC
// is used and other threads run.
void ReadOnStreamThreads();

// Signals from outside. A thread waits for them, so nothing runs in a signal handler: SIGTERM, SIGINT and SIGQUIT stop
// the process, SIGHUP has it look at its files. Others whose default is to end a process are ignored. One per process,
// constructed before any other thread starts, so that all threads inherit the blocked signals.
class Signals {
 public:
  Signals();

  // Blocks until a signal to stop comes, and calls `look` for each SIGHUP before. Returns the signal's number.
  int AwaitStop(const std::function<void()>& look) const;

  // Sends SIGTERM to this process. Thread-safe; returns at once.
  void RequestStop() const;

  // Makes the next signal to stop end the process at once, with exit status 1. Returns at once.
  void ExitOnNext() const;

 private:
  sigset_t signals_;
};

// Writes the port in decimal and a newline to `path`, atomically: a reader finds the whole file or none.
absl::Status WritePortFile(const std::string& path, uint16_t port);

// Reads the key that seals checkpoints. Returns nothing if `path` is empty, and INVALID_ARGUMENT, which names
// --checkpoint_key, if the file cannot be read or is too short.
absl::StatusOr<std::optional<service::CheckpointKey>> ReadCheckpointKey(const std::string& path);

}  // namespace sortition::server

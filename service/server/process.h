// What main needs of the process: the allocator's settings, stop signals, the port file, the checkpoint key's file.
#pragma once

#include <csignal>
#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "service/sequence/checkpoint.h"

namespace sortition::server {

// Keeps freed message buffers in the process. By default glibc hands the pages of every freed message back to the
// kernel and faults them in again for the next one, which halves the throughput of 1 MB messages. Without effect on
// other C libraries. Call once, before other threads run.
void TuneAllocator();

// One per process, made before any other thread, which then inherits the blocked signals.
class StopSignals {
 public:
  StopSignals();

  // Blocks until one of the signals comes; returns its number.
  int Wait() const;

  // As if SIGTERM had come. Any thread; returns at once.
  void Request() const;

  // From now on another one ends the process at once, with exit status 1. Returns at once.
  void ExitOnNext() const;

 private:
  sigset_t signals_;
};

// Writes the port in decimal and a newline to `path`, atomically: who finds the file finds all of it.
absl::Status WritePortFile(const std::string& path, uint16_t port);

// Nothing if `path` is empty. INVALID_ARGUMENT naming --checkpoint_key if the file cannot be read or is too short.
absl::StatusOr<std::optional<service::CheckpointKey>> ReadCheckpointKey(const std::string& path);

}  // namespace sortition::server

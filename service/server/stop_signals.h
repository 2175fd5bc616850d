// SIGTERM and SIGINT, waited for by a thread: nothing runs in a signal handler.
#pragma once

#include <csignal>

namespace sortition::server {

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

}  // namespace sortition::server

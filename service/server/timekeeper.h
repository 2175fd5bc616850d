// A thread that does, every few milliseconds, what only time tells.
#pragma once

#include <atomic>
#include <functional>
#include <thread>

#include "absl/time/time.h"

namespace sortition::server {

// Made and stopped by one thread.
class Timekeeper {
 public:
  // `tick` is called every `period` until Stop.
  Timekeeper(absl::Duration period, std::function<void()> tick);
  // Stops if that has not been done.
  ~Timekeeper();
  Timekeeper(const Timekeeper&) = delete;
  Timekeeper& operator=(const Timekeeper&) = delete;

  // Blocks until the last tick is over.
  void Stop();

 private:
  std::atomic<bool> stop_ = false;
  std::thread thread_;
};

}  // namespace sortition::server

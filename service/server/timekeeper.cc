// The loop of the timekeeper.
#include "service/server/timekeeper.h"

#include <utility>

#include "service/server/steady_wait.h"

namespace sortition::server {

Timekeeper::Timekeeper(absl::Duration period, std::function<void()> tick)
    : thread_([this, period, tick = std::move(tick)] {
        while (!WaitSteadily(period, [this] { return stop_.load(std::memory_order_relaxed); })) tick();
      }) {}

Timekeeper::~Timekeeper() { Stop(); }

void Timekeeper::Stop() {
  stop_ = true;
  if (thread_.joinable()) thread_.join();
}

}  // namespace sortition::server

// Waiting for signals.
#include "service/server/stop_signals.h"

#include <unistd.h>

#include <thread>

#include "kernels/check.h"

namespace sortition::server {

StopSignals::StopSignals() {
  sigemptyset(&signals_);
  sigaddset(&signals_, SIGTERM);
  sigaddset(&signals_, SIGINT);
  SORTITION_CHECK(pthread_sigmask(SIG_BLOCK, &signals_, nullptr) == 0);
}

int StopSignals::Wait() const {
  int signal;
  SORTITION_CHECK(sigwait(&signals_, &signal) == 0);
  return signal;
}

void StopSignals::Request() const { kill(getpid(), SIGTERM); }

void StopSignals::ExitOnNext() const {
  std::thread([signals = signals_] {
    int signal;
    sigwait(&signals, &signal);
    _exit(1);
  }).detach();
}

}  // namespace sortition::server

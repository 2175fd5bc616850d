// The control beside a benchmark: what the machine did to its times.
#pragma once

#include <memory>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "client/bench/histogram.h"
#include "client/bench/report.h"
#include "service/hiccups.h"

namespace sortition::bench {

// Thread-safe.
class Control {
 public:
  // Holds a time for each wake-up since the start (HiccupControl::Woken).
  struct Lateness {
    Histogram machine;
    Histogram threads;
  };

  // Runs a control on the cores that the calling thread may use. Returns null if the system denies it, which it says on
  // standard error.
  static std::unique_ptr<Control> Start();

  const service::HiccupControl& hiccups() const { return *control_; }
  Lateness Read() const;

 private:
  Control() = default;

  mutable absl::Mutex mutex_;
  Lateness lateness_ ABSL_GUARDED_BY(mutex_);
  std::unique_ptr<service::HiccupControl> control_;  // ends first
};

// Adds the percentiles control_machine_... and control_threads_...
void ReportControl(const Control::Lateness& lateness, Report* report);

}  // namespace sortition::bench

// Where a benchmark's two ends run: one core each, so that neither is helped by cores that a deployment has not.
#pragma once

#include <sched.h>

#include "kernels/check.h"

namespace sortition::bench {

// The calling thread, and whatever it starts from now on, runs on this core alone.
inline void RunOnCore(int core) {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(core, &set);
  SORTITION_CHECK(sched_setaffinity(0, sizeof(set), &set) == 0);
}

// For the time of its life.
class OnCore {
 public:
  explicit OnCore(int core) {
    SORTITION_CHECK(sched_getaffinity(0, sizeof(before_), &before_) == 0);
    RunOnCore(core);
  }
  ~OnCore() { SORTITION_CHECK(sched_setaffinity(0, sizeof(before_), &before_) == 0); }
  OnCore(const OnCore&) = delete;
  OnCore& operator=(const OnCore&) = delete;

 private:
  cpu_set_t before_;
};

}  // namespace sortition::bench

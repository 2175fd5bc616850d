// Cores for a benchmark's two ends: one each, so that neither is helped by cores that a deployment lacks.
#pragma once

#include <sched.h>

#include "kernels/check.h"

namespace sortition::bench {

// Binds the calling thread, and all threads that it starts afterwards, to this core.
inline void RunOnCore(int core) {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(core, &set);
  SORTITION_CHECK(sched_setaffinity(0, sizeof(set), &set) == 0);
}

// Binds the thread to a core until destroyed.
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

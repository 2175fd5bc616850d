// The server that a suite measures, cores for its two ends, and their processor time.
#pragma once

#include <sched.h>
#include <time.h>

#include <filesystem>
#include <iostream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "client/process/server_process.h"
#include "kernels/check.h"

namespace sortition::bench {

inline constexpr int kAnyCore = -1;

// Binds the calling thread, and all threads that it starts afterwards, to this core.
inline void RunOnCore(int core) {
  if (core == kAnyCore) return;
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

// Starts the sortitiond in this program's folder. One core each for both ends: neither is helped by cores that a
// deployment lacks.
inline std::unique_ptr<process::ServerProcess> StartServer(const std::vector<std::string>& flags, int core = kAnyCore,
                                                           const std::string& log_file = "") {
  const OnCore on_core(core);
  const auto program = std::filesystem::read_symlink("/proc/self/exe").parent_path() / "sortitiond";
  auto server = process::ServerProcess::Start(program.string(), flags, log_file);
  if (!server.ok()) std::cerr << server.status() << "\n";
  SORTITION_CHECK(server.ok());
  return *std::move(server);
}

inline double Seconds(clockid_t clock) {
  timespec time;
  SORTITION_CHECK(clock_gettime(clock, &time) == 0);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

// Processor time that a process has used, in seconds.
inline double CpuSeconds(pid_t process) {
  clockid_t clock;
  SORTITION_CHECK(clock_getcpuclockid(process, &clock) == 0);
  return Seconds(clock);
}

}  // namespace sortition::bench

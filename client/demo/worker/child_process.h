// A process of our own: started, signalled by its id, waited for, and never left behind.
#pragma once

#include <sys/types.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace sortition::demo {

// Not thread-safe. A child that still runs when this is destroyed is killed; it gets SIGTERM if the thread that started
// it ends first, however that comes about.
class ChildProcess {
 public:
  // Runs `program` with `arguments`. What it writes goes to the end of `output_file`, or where ours goes if that is
  // empty. A program that cannot be run exits with 127.
  static absl::StatusOr<std::unique_ptr<ChildProcess>> Start(const std::string& program,
                                                             const std::vector<std::string>& arguments,
                                                             const std::string& output_file);
  ~ChildProcess();
  ChildProcess(const ChildProcess&) = delete;
  ChildProcess& operator=(const ChildProcess&) = delete;

  pid_t pid() const { return pid_; }
  // Nothing happens if it has ended.
  void Signal(int signal);
  bool Running();
  // Its exit code, or 128 plus the signal that ended it. DEADLINE_EXCEEDED if it still runs after `timeout`.
  absl::StatusOr<int> Wait(absl::Duration timeout);

 private:
  explicit ChildProcess(pid_t pid) : pid_(pid) {}

  const pid_t pid_;
  bool running_ = true;
  int exit_code_ = 0;
};

}  // namespace sortition::demo

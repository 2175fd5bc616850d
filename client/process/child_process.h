// A child process: started, signalled by its id, waited for, and killed if it would be left behind.
#pragma once

#include <sys/types.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace sortition::process {

// Not thread-safe. The destructor kills a child that still runs. If the thread that started the child ends first, the
// kernel sends it SIGTERM.
class ChildProcess {
 public:
  struct Options {
    std::string program;
    std::vector<std::string> arguments;
    // File to which its output is appended; empty: the output of this process.
    std::string output_file;
    // NAME=VALUE each; absent: the environment of this process.
    std::optional<std::vector<std::string>> environment;
  };
  // Starts a child. If the program cannot be run, the child exits with 127.
  static absl::StatusOr<std::unique_ptr<ChildProcess>> Start(const Options& options);
  ~ChildProcess();
  ChildProcess(const ChildProcess&) = delete;
  ChildProcess& operator=(const ChildProcess&) = delete;

  pid_t pid() const { return pid_; }
  // Sends a signal, unless the child has ended.
  void Signal(int signal);
  bool Running();
  // Waits for its end, and returns the exit code or 128 plus the signal that ended it. DEADLINE_EXCEEDED if it still
  // runs after `timeout`.
  absl::StatusOr<int> Wait(absl::Duration timeout);

 private:
  explicit ChildProcess(pid_t pid) : pid_(pid) {}

  const pid_t pid_;
  bool running_ = true;
  int exit_code_ = 0;
};

}  // namespace sortition::process

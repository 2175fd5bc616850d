// A process of our own: started, signalled by its id, waited for, and never left behind.
#pragma once

#include <sys/types.h>

#include <memory>
#include <optional>
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
  struct Options {
    std::string program;
    std::vector<std::string> arguments;
    // Where what it writes goes, at the end of the file; empty: where ours goes.
    std::string output_file;
    // NAME=VALUE each; absent: ours.
    std::optional<std::vector<std::string>> environment;
  };
  // A program that cannot be run exits with 127.
  static absl::StatusOr<std::unique_ptr<ChildProcess>> Start(const Options& options);
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

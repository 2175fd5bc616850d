// A sortitiond as a child process, on a free loopback port.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/process/child_process.h"

namespace sortition::process {

// Not thread-safe. The destructor kills a server that still runs.
class ServerProcess {
 public:
  // Starts `program` without metrics, on `port` (0 = any free one), with `flags`, and blocks until it serves. Settings
  // in the environment (SORTITIOND_...) are not passed on. Its log is appended to `log_file`, or goes to stderr if that
  // is empty. If the server ends before it serves, the error has its exit code.
  static absl::StatusOr<std::unique_ptr<ServerProcess>> Start(const std::string& program,
                                                              const std::vector<std::string>& flags,
                                                              const std::string& log_file, int port = 0);
  ~ServerProcess();

  const std::string& address() const { return address_; }  // "127.0.0.1:PORT"
  int port() const { return port_; }
  ChildProcess& process() { return *process_; }

  // Asks the server to drain, and blocks until it ends. An error if it does not end with exit code 0 within `timeout`.
  absl::Status Stop(absl::Duration timeout);

 private:
  ServerProcess() = default;

  std::string directory_;
  std::string port_file_;
  std::string address_;
  int port_ = 0;
  std::unique_ptr<ChildProcess> process_;
};

}  // namespace sortition::process

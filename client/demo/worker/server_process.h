// A sortitiond of our own on a free loopback port.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/demo/worker/child_process.h"

namespace sortition::demo {

// Not thread-safe. Killed, if it still runs, when this is destroyed.
class ServerProcess {
 public:
  // Starts `program` without metrics, on `port` (0 = any free one), and blocks until it serves. `flags` are added;
  // settings in our environment are kept from it. Its log goes to the end of `log_file`, or to our stderr if that is
  // empty. The error has the exit code if it ends before it serves.
  static absl::StatusOr<std::unique_ptr<ServerProcess>> Start(const std::string& program,
                                                              const std::vector<std::string>& flags,
                                                              const std::string& log_file, int port = 0);
  ~ServerProcess();

  const std::string& address() const { return address_; }  // "127.0.0.1:PORT"
  int port() const { return port_; }
  ChildProcess& process() { return *process_; }

  // Asks it to drain and blocks until it has ended. The error says how if it did not end with 0 within `timeout`.
  absl::Status Stop(absl::Duration timeout);

 private:
  ServerProcess() = default;

  std::string directory_;
  std::string port_file_;
  std::string address_;
  int port_ = 0;
  std::unique_ptr<ChildProcess> process_;
};

}  // namespace sortition::demo

// sortitiond as a separate process.
#pragma once

#include <sys/types.h>

#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"

namespace sortition::server {

// Starts the server with exactly the given arguments and environment, and reads its standard error. Destruction kills
// it.
class ServerProcess {
 public:
  struct Options {
    std::vector<std::string> arguments;
    std::vector<std::string> environment;
    int descriptor_limit = 0;  // ulimit -n; 0 = as it is
  };

  explicit ServerProcess(const Options& options);
  ~ServerProcess();

  // The first line that reports `event`; empty if the process ends without one.
  std::string AwaitEvent(const std::string& event);
  // Waits until it serves; the value of a field of that line: "listen", "metrics", ....
  std::string Serving(const std::string& field);

  pid_t pid() const { return pid_; }
  void Signal(int signal);
  // Waits for the end; its exit status, or minus the signal that ended it.
  int Wait();
  // All lines so far; all there are after Wait.
  std::vector<std::string> lines() const;

 private:
  void ReadLines(int fd);

  pid_t pid_;
  bool waited_ = false;
  std::thread reader_;
  mutable absl::Mutex mutex_;
  std::vector<std::string> lines_ ABSL_GUARDED_BY(mutex_);
  bool ended_ ABSL_GUARDED_BY(mutex_) = false;
};

// True if the processes run under a sanitizer, according to its settings in the environment. A sanitizer needs memory
// and time, so a process's size and speed do not measure the server then.
bool UnderSanitizer();

// A path in the test's temporary folder that no other test uses.
std::string TestPath(const std::string& name);
void WriteFile(const std::string& path, const std::string& text);

// Connects a plain TCP socket to "127.0.0.1:PORT"; -1 if that fails.
int ConnectSocket(const std::string& address);
// The body of an HTTP GET.
std::string HttpGet(const std::string& address, const std::string& path);

// A sample on a server's metrics page, by its name with its labels; -1 where there is none.
int Metric(const std::string& address, const std::string& sample);

}  // namespace sortition::server

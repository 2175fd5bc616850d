// Starts children with fork and exec, and waits for them.
#include "client/process/child_process.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "kernels/check.h"

namespace sortition::process {
namespace {

constexpr absl::Duration kEndPollInterval = absl::Milliseconds(2);

// Returns the null-terminated array that exec takes, which points into `strings`.
std::vector<char*> Pointers(const std::vector<std::string>& strings) {
  std::vector<char*> pointers;
  for (const std::string& string : strings) pointers.push_back(const_cast<char*>(string.c_str()));
  pointers.push_back(nullptr);
  return pointers;
}

}  // namespace

absl::StatusOr<std::unique_ptr<ChildProcess>> ChildProcess::Start(const Options& options) {
  std::vector<std::string> command = {options.program};
  command.insert(command.end(), options.arguments.begin(), options.arguments.end());
  const std::vector<char*> argv = Pointers(command);
  const std::vector<char*> chosen = options.environment ? Pointers(*options.environment) : std::vector<char*>();
  char* const* environment = options.environment ? chosen.data() : environ;
  int output = -1;
  if (!options.output_file.empty()) {
    output = open(options.output_file.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    if (output < 0) return absl::ErrnoToStatus(errno, absl::StrCat("cannot write ", options.output_file));
  }
  const pid_t parent = getpid();
  const pid_t pid = fork();
  if (pid == 0) {
    // Between fork and exec only async-signal-safe calls are allowed, because the process had threads.
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    if (getppid() != parent) _exit(126);
    if (output >= 0) {
      dup2(output, STDOUT_FILENO);
      dup2(output, STDERR_FILENO);
    }
    execve(argv[0], argv.data(), environment);
    _exit(127);
  }
  const int error = errno;
  if (output >= 0) close(output);
  if (pid < 0) return absl::ErrnoToStatus(error, "fork");
  return std::unique_ptr<ChildProcess>(new ChildProcess(pid));
}

ChildProcess::~ChildProcess() {
  Signal(SIGKILL);
  Wait(absl::InfiniteDuration()).IgnoreError();
}

void ChildProcess::Signal(int signal) {
  if (Running()) kill(pid_, signal);
}

bool ChildProcess::Running() {
  if (!running_) return false;
  int status;
  const pid_t ended = waitpid(pid_, &status, WNOHANG);
  SORTITION_CHECK(ended == 0 || ended == pid_);
  if (ended == 0) return true;
  running_ = false;
  exit_code_ = WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
  return false;
}

absl::StatusOr<int> ChildProcess::Wait(absl::Duration timeout) {
  const absl::Time deadline = absl::Now() + timeout;
  while (Running()) {
    if (absl::Now() >= deadline) return absl::DeadlineExceededError(absl::StrCat("process ", pid_, " still runs"));
    absl::SleepFor(kEndPollInterval);
  }
  return exit_code_;
}

}  // namespace sortition::process

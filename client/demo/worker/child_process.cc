// fork, exec and waitpid.
#include "client/demo/worker/child_process.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "kernels/check.h"

namespace sortition::demo {
namespace {

constexpr absl::Duration kPollInterval = absl::Milliseconds(2);

}  // namespace

absl::StatusOr<std::unique_ptr<ChildProcess>> ChildProcess::Start(const std::string& program,
                                                                  const std::vector<std::string>& arguments,
                                                                  const std::string& output_file) {
  std::vector<char*> argv = {const_cast<char*>(program.c_str())};
  for (const std::string& argument : arguments) argv.push_back(const_cast<char*>(argument.c_str()));
  argv.push_back(nullptr);
  int output = -1;
  if (!output_file.empty()) {
    output = open(output_file.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    if (output < 0) return absl::ErrnoToStatus(errno, absl::StrCat("cannot write ", output_file));
  }
  const pid_t parent = getpid();
  const pid_t pid = fork();
  if (pid == 0) {
    // Between fork and exec only calls that are safe in a copy of a process with threads.
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    if (getppid() != parent) _exit(126);
    if (output >= 0) {
      dup2(output, STDOUT_FILENO);
      dup2(output, STDERR_FILENO);
    }
    execv(program.c_str(), argv.data());
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
    absl::SleepFor(kPollInterval);
  }
  return exit_code_;
}

}  // namespace sortition::demo

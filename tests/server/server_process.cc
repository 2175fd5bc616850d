// Starting and reading of server processes.
#include "tests/server/server_process.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <fstream>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "kernels/check.h"
#include "service/net/listen_socket.h"
#include "tests/server/json.h"

namespace sortition::server {
namespace {

constexpr const char* kSanitizerOptions[] = {"ASAN_OPTIONS", "TSAN_OPTIONS", "UBSAN_OPTIONS"};

// An emulated device takes many seconds for its self-test if processors are busy.
constexpr absl::Duration kLongestWait = absl::Seconds(50);

// A sanitizer's settings reach every process of a test.
void AddSanitizerOptions(std::vector<std::string>* environment) {
  for (const char* name : kSanitizerOptions) {
    if (const char* value = getenv(name)) environment->push_back(absl::StrCat(name, "=", value));
  }
}

std::vector<char*> Pointers(std::vector<std::string>& texts) {
  std::vector<char*> pointers;
  for (std::string& text : texts) pointers.push_back(text.data());
  pointers.push_back(nullptr);
  return pointers;
}

}  // namespace

bool UnderSanitizer() {
  return std::ranges::any_of(kSanitizerOptions, [](const char* name) { return getenv(name) != nullptr; });
}

ServerProcess::ServerProcess(const Options& options) {
  std::vector<std::string> arguments = {SORTITIOND};
  arguments.insert(arguments.end(), options.arguments.begin(), options.arguments.end());
  std::vector<std::string> environment = options.environment;
  AddSanitizerOptions(&environment);
  const std::vector<char*> argv = Pointers(arguments);
  const std::vector<char*> envp = Pointers(environment);
  int ends[2];
  SORTITION_CHECK(pipe2(ends, O_CLOEXEC) == 0);
  pid_ = fork();
  SORTITION_CHECK(pid_ >= 0);
  if (pid_ == 0) {
    dup2(ends[1], STDERR_FILENO);
    prctl(PR_SET_PDEATHSIG, SIGKILL);  // a test that crashes leaves no server behind
    if (options.descriptor_limit > 0) {
      const rlim_t limit = static_cast<rlim_t>(options.descriptor_limit);
      const struct rlimit both = {limit, limit};
      setrlimit(RLIMIT_NOFILE, &both);
    }
    execve(SORTITIOND, argv.data(), envp.data());
    _exit(127);
  }
  close(ends[1]);
  reader_ = std::thread([this, fd = ends[0]] { ReadLines(fd); });
}

ServerProcess::~ServerProcess() {
  if (!waited_) {
    Signal(SIGKILL);
    Wait();
  }
}

void ServerProcess::ReadLines(int fd) {
  FILE* file = fdopen(fd, "r");
  char* line = nullptr;
  size_t capacity = 0;
  ssize_t length;
  while ((length = getline(&line, &capacity, file)) >= 0) {
    absl::MutexLock lock(&mutex_);
    lines_.emplace_back(line, static_cast<size_t>(length));
  }
  free(line);
  fclose(file);
  absl::MutexLock lock(&mutex_);
  ended_ = true;
}

std::string ServerProcess::AwaitEvent(const std::string& event) {
  std::string found;
  const auto find = [&] {
    for (const std::string& line : lines_) {
      if (absl::StrContains(line, absl::StrCat("\"event\":\"", event, "\""))) {
        found = line;
        return true;
      }
    }
    return ended_;
  };
  absl::MutexLock lock(&mutex_);
  mutex_.AwaitWithTimeout(absl::Condition(&find), kLongestWait);
  return found;
}

std::string ServerProcess::Serving(const std::string& field) {
  const auto parsed = ParseJson(AwaitEvent("serving"));
  EXPECT_TRUE(parsed) << "the server did not start";
  return parsed ? JsonText(*parsed, field) : "";
}

void ServerProcess::Signal(int signal) { SORTITION_CHECK(kill(pid_, signal) == 0); }

int ServerProcess::Wait() {
  int status;
  SORTITION_CHECK(waitpid(pid_, &status, 0) == pid_);
  waited_ = true;
  reader_.join();
  return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

std::vector<std::string> ServerProcess::lines() const {
  absl::MutexLock lock(&mutex_);
  return lines_;
}

std::string TestPath(const std::string& name) {
  return absl::StrCat(::testing::TempDir(), "sortition_", getpid(), "_", name);
}

void WriteFile(const std::string& path, const std::string& text) {
  std::ofstream file(path);
  file << text;
  file.close();
  SORTITION_CHECK(file.good());
}

int ConnectSocket(const std::string& address) {
  const auto parsed = ListenAddress::Parse(address);
  SORTITION_CHECK(parsed.ok());
  const int fd = socket(parsed->address()->sa_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd < 0 || connect(fd, parsed->address(), parsed->size()) == 0) return fd;
  close(fd);
  return -1;
}

std::string HttpGet(const std::string& address, const std::string& path) {
  const int fd = ConnectSocket(address);
  if (fd < 0) return "";
  const std::string request = absl::StrCat("GET ", path, " HTTP/1.0\r\nHost: test\r\n\r\n");
  std::string response;
  if (write(fd, request.data(), request.size()) == static_cast<ssize_t>(request.size())) {
    char buffer[4096];
    ssize_t length;
    while ((length = read(fd, buffer, sizeof(buffer))) > 0) response.append(buffer, static_cast<size_t>(length));
  }
  close(fd);
  const size_t body = response.find("\r\n\r\n");
  return body == std::string::npos ? "" : response.substr(body + 4);
}

int Metric(const std::string& address, const std::string& sample) {
  const std::string page = HttpGet(address, "/metrics");
  const size_t at = page.find(absl::StrCat("\n", sample, " "));
  return at == std::string::npos ? -1 : std::atoi(page.c_str() + at + sample.size() + 2);
}

}  // namespace sortition::server

// Starts a server and reads its port.
#include "client/process/server_process.h"

#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <fstream>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"

namespace sortition::process {
namespace {

constexpr absl::Duration kStartTimeout = absl::Seconds(30);
constexpr absl::Duration kStartPollInterval = absl::Milliseconds(2);

// Reads the port file, which the server writes at once. Returns 0 until it exists.
int ReadPort(const std::string& path) {
  std::ifstream file(path);
  int port = 0;
  file >> port;
  return port;
}

// Returns the environment of this process without the server's settings (SORTITIOND_...), so that only flags count.
std::vector<std::string> EnvironmentWithoutSettings() {
  std::vector<std::string> kept;
  for (char** variable = environ; *variable != nullptr; ++variable) {
    if (!absl::StartsWith(*variable, "SORTITIOND_")) kept.emplace_back(*variable);
  }
  return kept;
}

}  // namespace

absl::StatusOr<std::unique_ptr<ServerProcess>> ServerProcess::Start(const std::string& program,
                                                                    const std::vector<std::string>& flags,
                                                                    const std::string& log_file, int port) {
  std::unique_ptr<ServerProcess> server(new ServerProcess());
  std::error_code error;
  std::string directory = (std::filesystem::temp_directory_path(error) / "sortition-XXXXXX").string();
  if (error || mkdtemp(directory.data()) == nullptr)
    return absl::ErrnoToStatus(errno, "cannot make a temporary directory");
  server->directory_ = directory;
  server->port_file_ = directory + "/port";

  std::vector<std::string> arguments = {absl::StrCat("--listen=127.0.0.1:", port),
                                        "--metrics_listen=", absl::StrCat("--port_file=", server->port_file_)};
  arguments.insert(arguments.end(), flags.begin(), flags.end());
  auto process = ChildProcess::Start({program, arguments, log_file, EnvironmentWithoutSettings()});
  if (!process.ok()) return process.status();
  server->process_ = *std::move(process);

  const absl::Time deadline = absl::Now() + kStartTimeout;
  while ((server->port_ = ReadPort(server->port_file_)) == 0) {
    if (!server->process_->Running()) {
      return absl::UnavailableError(
          absl::StrCat(program, " ended with ", *server->process_->Wait(absl::ZeroDuration()), " before it served"));
    }
    if (absl::Now() > deadline) return absl::DeadlineExceededError(absl::StrCat(program, " does not serve"));
    absl::SleepFor(kStartPollInterval);
  }
  server->address_ = absl::StrCat("127.0.0.1:", server->port_);
  return server;
}

ServerProcess::~ServerProcess() {
  process_.reset();
  std::error_code ignored;  // the port file is not needed any more
  std::filesystem::remove_all(directory_, ignored);
}

absl::Status ServerProcess::Stop(absl::Duration timeout) {
  process_->Signal(SIGTERM);
  const absl::StatusOr<int> code = process_->Wait(timeout);
  if (!code.ok()) return code.status();
  if (*code != 0) return absl::InternalError(absl::StrCat("the server ended with ", *code));
  return absl::OkStatus();
}

}  // namespace sortition::process

// A row is sent when the one before it was answered. The program computes all the time, so that no time is lost.
#include "tests/conformance/piped_device.h"

#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "kernels/law/version.h"
#include "tests/conformance/row_wire.h"

namespace sortition {
namespace {

class PipedDevice final : public devices::Device {
 public:
  // Takes both.
  PipedDevice(int socket, pid_t child) : socket_(socket), child_(child) {}
  ~PipedDevice() override {
    close(socket_);  // its end
    waitpid(child_, nullptr, 0);
  }

  absl::Status ReadName(const std::string& command) {
    std::string name;
    if (!testing::ReadMessage(socket_, &name)) return absl::UnavailableError(absl::StrCat(command, ": has ended"));
    absl::string_view hardware = name;
    if (!absl::ConsumePrefix(&hardware, absl::StrCat("law ", law::kLawVersion, ", "))) {
      return absl::FailedPreconditionError(absl::StrCat(command, ": is of \"", name, "\""));
    }
    description_.name = description_.kind = "pipe";
    description_.hardware = std::string(hardware);
    description_.max_batch_rows = 1024;
    description_.features = kernels::kAllFeatures;
    return absl::OkStatus();
  }

  const devices::DeviceDescription& description() const override { return description_; }

  void Submit(std::vector<devices::DeviceRow> rows, Done done) override {
    devices::BatchOutput batch;
    std::string message;
    for (const devices::DeviceRow& row : rows) {
      const void* const logits = row.segments.front().data;  // the only one
      if (!testing::WriteMessage(socket_, testing::ToBytes(testing::CopyRow(row.request, logits))) ||
          !testing::ReadMessage(socket_, &message)) {
        batch.status = absl::UnavailableError("the program has ended");
      } else if (auto output = testing::FromBytes<kernels::RowOutput>(message)) {
        batch.outputs.push_back(*std::move(output));
      } else {
        batch.status = absl::DataLossError("the program's answer has another form");
      }
      if (!batch.status.ok()) {
        batch.outputs.clear();
        break;
      }
    }
    done(std::move(batch));
  }

 private:
  const int socket_;
  const pid_t child_;
  devices::DeviceDescription description_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<devices::Device>> StartPipedDevice(const std::string& command) {
  std::signal(SIGPIPE, SIG_IGN);  // a program that has ended is an error of a write
  int sockets[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sockets) != 0) return absl::ErrnoToStatus(errno, command);
  const pid_t child = fork();
  if (child < 0) return absl::ErrnoToStatus(errno, command);
  if (child == 0) {
    dup2(sockets[1], STDIN_FILENO);
    dup2(sockets[1], STDOUT_FILENO);
    execl("/bin/sh", "sh", "-c", command.c_str(), nullptr);
    _exit(127);
  }
  close(sockets[1]);
  auto device = std::make_unique<PipedDevice>(sockets[0], child);
  if (absl::Status status = device->ReadName(command); !status.ok()) return status;
  return device;
}

}  // namespace sortition

// Unix sockets whose server accepts no connection: the wait is bounded.
#include "client/cpp/transport/unix_socket.h"

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "gtest/gtest.h"
#include "sortition/client.h"
#include "sortition/in_process.h"

namespace sortition::testing::unix_socket_test {
namespace {

// Listens and never accepts, with a full queue of connections.
class FullListener {
 public:
  FullListener() {
    sockaddr_un address = {};
    address.sun_family = AF_UNIX;
    std::memcpy(address.sun_path, path_.data(), path_.size());
    const auto* const to = reinterpret_cast<const sockaddr*>(&address);
    EXPECT_EQ(bind(listener_.get(), to, sizeof(address)), 0);
    EXPECT_EQ(listen(listener_.get(), 0), 0);
    do {
      waiting_.emplace_back(socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0));
    } while (waiting_.size() < 100 && connect(waiting_.back().get(), to, sizeof(address)) == 0);
    EXPECT_LT(waiting_.size(), 100);
  }
  ~FullListener() { unlink(path_.c_str()); }

  std::string target() const { return "unix:" + path_; }
  // A waiting connect fails.
  void Close() { listener_ = service::Descriptor(); }

 private:
  const std::string path_ = absl::StrCat(::testing::TempDir(), "sortition_", getpid(), "_full");
  service::Descriptor listener_{socket(AF_UNIX, SOCK_STREAM, 0)};
  std::vector<service::Descriptor> waiting_;
};

// The client's lock is held while a stream starts, so that a wait there would delay every deadline.
TEST(UnixSocketTest, FullAcceptQueueBlocksNoCaller) {
  FullListener listener;
  client::ClientOptions options;
  options.targets = {listener.target()};
  options.in_process = client::InProcessEngine(1);
  absl::Notification connected;
  bool in_process = false;
  std::thread worker([&] {
    const auto client = client::Client::Connect(options);
    in_process = client.ok() && (*client)->in_process();
    connected.Notify();
  });
  const bool in_time = connected.WaitForNotificationWithTimeout(absl::Seconds(20));
  if (!in_time) listener.Close();
  worker.join();
  EXPECT_TRUE(in_time && in_process);
}

TEST(UnixSocketTest, FullAcceptQueueTimesOut) {
  FullListener listener;
  for (const absl::Duration budget : {absl::ZeroDuration(), absl::Milliseconds(1)}) {
    const auto socket = client::ConnectUnix(listener.target(), SOCK_STREAM, client::RetryBudget(budget));
    EXPECT_EQ(socket.status().code(), absl::StatusCode::kUnavailable) << budget;
  }
}

}  // namespace
}  // namespace sortition::testing::unix_socket_test

// Listeners: addresses, sockets that are taken, Unix sockets.
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <chrono>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "client/cpp/transport/unix_socket.h"
#include "service/net/listen_socket.h"
#include "tests/server/memory_socket.h"
#include "tests/server/test_server.h"
#include "tests/server/test_stream.h"

namespace sortition::server::listener_test {
namespace {

std::string SocketPath(const char* name) {
  return absl::StrCat(::testing::TempDir(), "sortition_", getpid(), "_", name);
}

TEST(ListenAddressTest, PrintsWhatItParsed) {
  for (const char* text : {"127.0.0.1:50051", "0.0.0.0:0", "[::1]:65535", "[::]:1", "unix:/run/sortition.sock"}) {
    const auto address = ListenAddress::Parse(text);
    ASSERT_TRUE(address.ok()) << text;
    EXPECT_EQ(address->ToString(), text);
  }
}

TEST(ListenAddressTest, RefusesInvalidAddresses) {
  for (const char* text : {"", "127.0.0.1", "localhost:50051", "127.0.0.1:65536", "127.0.0.1:-1",
                           "127.0.0.1:", ":50051", "::1:50051", "[::1]", "[]:1", "1.2.3:4", "unix:"}) {
    const auto address = ListenAddress::Parse(text);
    ASSERT_FALSE(address.ok()) << text;
    EXPECT_TRUE(absl::StrContains(address.status().message(), text));
  }
  EXPECT_FALSE(ListenAddress::Parse("unix:" + std::string(200, 'x')).ok());
}

// The socket would have been made at /run/a.
TEST(ListenAddressTest, RefusesAByteZero) {
  using std::string_view_literals::operator""sv;
  for (const std::string_view text : {"unix:/run/a\0.sock"sv, "127.0.0.1\0x:80"sv}) {
    EXPECT_FALSE(ListenAddress::Parse(text).ok());
  }
}

TEST(ListenAddressTest, KnowsLocalAddresses) {
  for (const char* text : {"127.0.0.1:1", "127.1.2.3:1", "[::1]:1", "unix:/x"}) {
    EXPECT_TRUE(ListenAddress::Parse(text)->is_local()) << text;
  }
  for (const char* text : {"0.0.0.0:1", "10.0.0.1:1", "[::]:1", "[fd00::1]:1", "126.0.0.1:1"}) {
    EXPECT_FALSE(ListenAddress::Parse(text)->is_local()) << text;
  }
}

TEST(ListenerTest, SecondServerOnPortFails) {
  TestServer server;
  const auto second = ListenSocket::Bind(server.server().addresses().front());
  ASSERT_FALSE(second.ok());
  EXPECT_TRUE(absl::StrContains(second.status().message(), server.target())) << second.status();
  EXPECT_TRUE(absl::StrContains(second.status().message(), "Address already in use")) << second.status();
}

TEST(ListenerTest, PortIsFreeAfterStop) {
  TestServer server;
  const ListenAddress address = server.server().addresses().front();
  TestStream stream(server.Connect());
  stream.Greet();
  server.server().Stop();
  EXPECT_TRUE(ListenSocket::Bind(address).ok());
}

TEST(ListenerTest, ServesSeveralListeners) {
  Config config = TestConfig();
  config.listen = {absl::StrCat("unix:", SocketPath("several")), "127.0.0.1:0", "127.0.0.1:0"};
  TestServer server(config);
  ASSERT_EQ(server.server().addresses().size(), 3u);
  for (const ListenAddress& address : server.server().addresses()) {
    TestStream stream(grpc::CreateChannel(address.ToString(), grpc::InsecureChannelCredentials()));
    stream.Greet();
    stream.HalfClose();
    EXPECT_TRUE(stream.Finish().ok()) << address.ToString();
  }
}

// True if the server keeps a connection that it could accept.
bool IsKept(const service::Descriptor& connection) {
  pollfd polled = {connection.get(), POLLIN | POLLRDHUP, 0};
  EXPECT_EQ(poll(&polled, 1, 20'000), 1);  // gRPC begins with its settings, the memory socket with a welcome
  char first;
  return recv(connection.get(), &first, 1, MSG_PEEK) == 1;
}

TEST(ListenerTest, ConnectionsAreCapped) {
  Config config = TestConfig();
  config.listen = {absl::StrCat("unix:", SocketPath("capped"))};
  config.memory_listen = absl::StrCat("unix:", SocketPath("capped_memory"));
  config.health_listen = "127.0.0.1:0";
  config.limits.max_connections = 3;
  TestServer server(config);
  const auto connect = [&](const std::string& target, int type) {
    auto connection = client::ConnectUnix(target, type);
    EXPECT_TRUE(connection.ok()) << connection.status();
    return *std::move(connection);
  };
  std::vector<service::Descriptor> kept;
  kept.push_back(connect(config.memory_listen, SOCK_SEQPACKET));
  kept.push_back(connect(config.listen[0], SOCK_STREAM));
  kept.push_back(connect(config.listen[0], SOCK_STREAM));
  for (const service::Descriptor& connection : kept) EXPECT_TRUE(IsKept(connection));
  EXPECT_FALSE(IsKept(connect(config.listen[0], SOCK_STREAM)));
  EXPECT_FALSE(IsKept(connect(config.memory_listen, SOCK_SEQPACKET)));
  EXPECT_TRUE(server.log_lines().Await("connection_refused", 2));
  const auto probe =
      grpc::CreateChannel(server.server().health_address()->ToString(), grpc::InsecureChannelCredentials());
  EXPECT_TRUE(probe->WaitForConnected(std::chrono::system_clock::now() + std::chrono::seconds(20)));
  // Those that have ended are told by looking; the server may take a moment to close its end.
  kept.pop_back();
  EXPECT_TRUE(Becomes([&] { return IsKept(connect(config.listen[0], SOCK_STREAM)); }));
  kept.erase(kept.begin());
  EXPECT_TRUE(Becomes([&] { return IsKept(connect(config.memory_listen, SOCK_SEQPACKET)); }));
}

TEST(ListenerTest, UnixSocketIsPrivateAndRemoved) {
  const std::string path = SocketPath("private");
  {
    const auto bound = ListenSocket::Bind(*ListenAddress::Parse("unix:" + path));
    ASSERT_TRUE(bound.ok()) << bound.status();
    struct stat status;
    ASSERT_EQ(stat(path.c_str(), &status), 0);
    EXPECT_TRUE(S_ISSOCK(status.st_mode));
    EXPECT_EQ(status.st_mode & 0777, 0600u);
    EXPECT_FALSE(ListenSocket::Bind(*ListenAddress::Parse("unix:" + path)).ok()) << "taken from a server that lives";
  }
  EXPECT_NE(access(path.c_str(), F_OK), 0);
}

TEST(ListenerTest, SuccessorKeepsItsUnixSocket) {
  const std::string path = SocketPath("successor.sock");
  const auto address = ListenAddress::Parse("unix:" + path);
  auto first = ListenSocket::Bind(*address);
  ASSERT_TRUE(first.ok()) << first.status();
  unlink(path.c_str());
  auto second = ListenSocket::Bind(*address);
  ASSERT_TRUE(second.ok()) << second.status();
  first->reset();
  struct stat status;
  EXPECT_EQ(stat(path.c_str(), &status), 0) << "the path is the successor's";
  second->reset();
  EXPECT_NE(stat(path.c_str(), &status), 0);
}

TEST(ListenerTest, StaleUnixSocketIsReplacedFileIsNot) {
  const auto address = ListenAddress::Parse("unix:" + SocketPath("abandoned"));
  const int abandoned = socket(AF_UNIX, SOCK_STREAM, 0);
  ASSERT_EQ(bind(abandoned, address->address(), address->size()), 0);
  close(abandoned);
  EXPECT_TRUE(ListenSocket::Bind(*address).ok());

  FILE* file = fopen(address->unix_path().c_str(), "w");
  ASSERT_NE(file, nullptr);
  fclose(file);
  EXPECT_FALSE(ListenSocket::Bind(*address).ok());
  EXPECT_EQ(unlink(address->unix_path().c_str()), 0) << "the file is still there";
}

}  // namespace
}  // namespace sortition::server::listener_test

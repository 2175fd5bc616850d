// Clients that abuse HTTP/2 itself: the attacks of known advisories on gRPC, against the release of this build.
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <fstream>
#include <map>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "tests/server/http2_client.h"
#include "tests/server/raw_http2.h"
#include "tests/server/server_process.h"
#include "tests/server/test_stream.h"

namespace sortition::server::flood_test {
namespace {

constexpr char kStream[] = "/sortition.v1.SamplingService/Stream";

// Streams that were reset count until they have had their turn, and newcomers would be refused meanwhile.
ServerProcess::Options Options() {
  return {{"--listen=127.0.0.1:0", "--metrics_listen=", "--cpu_threads=1", "--max_streams=1000000"}, {}, 0};
}

// Bytes of memory that a process has, or has had at most.
uint64_t MemoryOf(pid_t process, const std::string& field) {
  std::ifstream status(absl::StrCat("/proc/", process, "/status"));
  for (std::string line; std::getline(status, line);) {
    absl::string_view rest = line;
    uint64_t kilobytes = 0;
    if (!absl::ConsumePrefix(&rest, field + ":") || !absl::ConsumeSuffix(&rest, "kB")) continue;
    if (absl::SimpleAtoi(rest, &kilobytes)) return kilobytes << 10;
  }
  ADD_FAILURE() << "no " << field;
  return 0;
}

void ExpectMemoryBelow(uint64_t bytes, uint64_t mebibytes) {
  if (UnderSanitizer()) return;
  EXPECT_LT(bytes, mebibytes << 20);
}

// False once the server has closed the connection.
bool SendAll(int fd, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t sent = send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (sent <= 0) return false;
    bytes.remove_prefix(static_cast<size_t>(sent));
  }
  return true;
}

// Reads the server's bytes, so that its writes never wait.
std::thread Drained(int fd) {
  return std::thread([fd] {
    char bytes[4096];
    while (recv(fd, bytes, sizeof(bytes), 0) > 0) {
    }
  });
}

void ExpectServes(const std::string& address) {
  TestStream stream(grpc::CreateChannel(address, grpc::InsecureChannelCredentials()));
  stream.Greet();
  stream.OpenSequence("r");
  ASSERT_TRUE(stream.SendStep("r", 1)) << stream.Finish().error_message();
  EXPECT_TRUE(stream.ReceiveOne().results().rows(0).has_draw());
}

// Opens streams and resets them as fast as the connection takes them. Then leaves, or waits until the server ends it.
void Flood(const std::string& address, int streams, bool leaves = true) {
  const int fd = ConnectSocket(address);
  ASSERT_GE(fd, 0);
  std::thread drained = Drained(fd);
  const std::string headers = CallHeaders(kStream);
  bool open = SendAll(fd, Http2Start() + Http2Frame(FrameType::kSettings, 1, 0, ""));
  for (uint32_t stream = 1; open && stream < 2 * static_cast<uint32_t>(streams); stream += 2) {
    open = SendAll(fd, Http2Frame(FrameType::kHeaders, kEndHeaders, stream, headers) +
                           Http2Frame(FrameType::kReset, 0, stream, std::string_view("\0\0\0\10", 4)));
  }
  if (leaves) shutdown(fd, SHUT_RDWR);
  drained.join();
  close(fd);
}

// CVE-2023-44487. The guard ends or paces each flood; others are served during it, and little memory is taken.
TEST(FloodTest, RapidResetsLeaveNothingOthersServed) {
  ServerProcess process(Options());
  const std::string address = process.Serving("listen");
  for (int i = 0; i < 10; ++i) {
    std::thread flood([&] { Flood(address, 3'000); });
    ExpectServes(address);
    flood.join();
    ExpectServes(address);
  }
  ExpectMemoryBelow(MemoryOf(process.pid(), "VmHWM"), 160);
  process.Signal(SIGTERM);
  EXPECT_EQ(process.Wait(), 0);
}

// Attackers and newcomers come from one address, as behind a translating router or a proxy of connections.
TEST(FloodTest, NewcomersOfTheSameAddressAreServed) {
  ServerProcess process(Options());
  const std::string address = process.Serving("listen");
  std::atomic<bool> stop = false;
  std::vector<std::thread> attackers;
  for (int i = 0; i < 4; ++i) {
    attackers.emplace_back([&] {
      while (!stop) Flood(address, 1'000, /*leaves=*/false);
    });
  }
  for (int i = 0; i < 10 && !HasFailure(); ++i) ExpectServes(address);
  stop = true;
  for (std::thread& attacker : attackers) attacker.join();
  process.Signal(SIGTERM);
  EXPECT_EQ(process.Wait(), 0);
}

// CVE-2023-33953. gRPC keeps a header for as long as it is continued, at a cost that grows with its square. The guard
// ends the connection at 64 KiB.
TEST(FloodTest, EndlessHeaderBlocksNoOthers) {
  ServerProcess process(Options());
  const std::string address = process.Serving("listen");
  const int fd = ConnectSocket(address);
  ASSERT_GE(fd, 0);
  std::thread drained = Drained(fd);
  // A literal header "a" that announces a value of 2^31 bytes.
  std::string start("\0\1a\x7f", 4);
  start += std::string_view("\x81\xff\xff\xff\7", 5);
  bool open = SendAll(fd, Http2Start() + Http2Frame(FrameType::kHeaders, 0, 1, start));
  const std::string piece = Http2Frame(FrameType::kContinuation, 0, 1, std::string(16384, 'x'));
  for (int i = 0; open && i < 256; ++i) {
    open = SendAll(fd, piece);
    if (i % 64 == 0) ExpectServes(address);
  }
  EXPECT_NE(process.AwaitEvent("connection_ended"), "");
  drained.join();  // the server has ended the connection
  close(fd);
  ExpectServes(address);
  ExpectMemoryBelow(MemoryOf(process.pid(), "VmHWM"), 160);
  process.Signal(SIGTERM);
  EXPECT_EQ(process.Wait(), 0);
}

// CVE-2023-1428: headers with a size that gRPC computed wrongly, then larger ones than it allows.
TEST(FloodTest, KnownCrashHeadersAreSurvived) {
  ServerProcess process(Options());
  const std::string address = process.Serving("listen");
  const std::string long_value(126, 'x');
  std::string filler;
  for (int i = 0; i < 200; ++i) filler += Http2Header(absl::StrCat("filler", i), long_value);
  for (const std::string& header :
       {Http2Header("te", "x"), Http2Header(":scheme", "x"), Http2Header("grpclb_client_stats", "x")}) {
    for (const bool is_first : {true, false}) {
      const int fd = ConnectSocket(address);
      ASSERT_GE(fd, 0);
      const std::string call = CallHeaders(kStream);
      const std::string headers = is_first ? header + call + filler : call + header + filler;
      std::string bytes = Http2Start() + Http2Frame(FrameType::kHeaders, 0, 1, headers.substr(0, 16000));
      bytes += Http2Frame(FrameType::kContinuation, kEndHeaders, 1, headers.substr(16000));
      SendAll(fd, bytes);
      shutdown(fd, SHUT_WR);
      Drained(fd).join();
      close(fd);
    }
  }
  ExpectServes(address);
  process.Signal(SIGTERM);
  EXPECT_EQ(process.Wait(), 0);
}

// Since 1.66 gRPC refuses connections while less than a hundredth of its memory is left, and ends calls only once there
// is none. So newcomers wait for the attacker to leave (docs/threat-model.md).
constexpr bool kRefusesWhenShort = GRPC_CPP_VERSION_MAJOR > 1 || GRPC_CPP_VERSION_MINOR >= 66;
constexpr std::chrono::seconds kMostWait(30);

// Each stream may have a message under way of up to twice the bound, and no message is ever complete.
TEST(FloodTest, EndlessMessagesAreBoundedTogether) {
  constexpr uint32_t kStreams = 48;
  constexpr uint64_t kPromised = 31u << 20;  // 1.5 GB in all
  ServerProcess process({{"--listen=127.0.0.1:0", "--metrics_listen=", "--cpu_threads=1", "--max_streams=64",
                          "--max_received_bytes=67108864"},
                         {},
                         0});
  const std::string address = process.Serving("listen");
  const uint64_t before = MemoryOf(process.pid(), "VmHWM");
  std::optional<Http2Client> client(std::in_place, address);
  ASSERT_TRUE(client->connected());
  std::map<uint32_t, uint64_t> left;
  for (uint32_t i = 0; i < kStreams; ++i) {
    client->Call(2 * i + 1, kStream);
    EXPECT_EQ(client->SendData(2 * i + 1, std::string_view("\0\1\xf0\0\0", 5)), 5u);
    left[2 * i + 1] = kPromised - 1;
  }
  const std::string piece(16384, 'x');
  for (bool moves = true; moves;) {
    moves = false;
    for (auto& [stream, bytes] : left) {
      const size_t sent = client->SendData(stream, std::string_view(piece).substr(0, std::min(bytes, piece.size())));
      bytes -= sent;
      moves |= sent > 0;
    }
    moves |= client->Receive(moves ? 0 : 500);
    std::erase_if(left, [&](const auto& entry) { return client->ended(entry.first) || entry.second == 0; });
  }
  // 64 MB of messages, 64 streams with half a megabyte unread each, and gRPC's memory until it has ended enough calls.
  ExpectMemoryBelow(MemoryOf(process.pid(), "VmHWM") - before, 640);
  if (kRefusesWhenShort) {
    client.reset();
    const auto newcomer = grpc::CreateChannel(address, grpc::InsecureChannelCredentials());
    EXPECT_TRUE(newcomer->WaitForConnected(std::chrono::system_clock::now() + kMostWait));
  }
  ExpectServes(address);
  process.Signal(SIGTERM);
  EXPECT_EQ(process.Wait(), 0);
}

}  // namespace
}  // namespace sortition::server::flood_test

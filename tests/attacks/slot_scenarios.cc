// Strangers and workers that take places, memory and answers, and leave them where they are.
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <map>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "kernels/check.h"
#include "service/net/listen_socket.h"
#include "sortition/v1/sampling.pb.h"
#include "tests/attacks/scenario.h"
#include "tests/server/http2_client.h"
#include "tests/server/raw_http2.h"
#include "tests/server/server_process.h"

namespace sortition::attacks {
namespace {

using server::FrameType;
using server::Http2Frame;

constexpr char kSamplePath[] = "/sortition.v1.SamplingService/Sample";
constexpr char kStreamPath[] = "/sortition.v1.SamplingService/Stream";
constexpr char kCheckPath[] = "/grpc.health.v1.Health/Check";
constexpr char kWatchPath[] = "/grpc.health.v1.Health/Watch";
constexpr absl::Duration kBetween = absl::Milliseconds(10);

// A message as gRPC sends it, or its beginning.
std::string Framed(std::string_view message, size_t size) {
  std::string bytes(1, '\0');
  for (const uint32_t shift : {24u, 16u, 8u, 0u}) bytes.push_back(static_cast<char>(size >> shift & 0xff));
  return bytes.append(message);
}

// Runs `attack` on each of `count` threads until the end. It returns when its connection has ended.
template <typename Attack>
Traffic OnThreads(const Attacked& attacked, int count, Attack attack) {
  std::vector<Traffic> parts(static_cast<size_t>(count));
  std::vector<std::thread> threads;
  for (Traffic& part : parts) {
    threads.emplace_back([&] {
      YieldToOthers();
      while (attacked.GoesOn()) {
        attack(&part);
        absl::SleepFor(kBetween);
      }
    });
  }
  Traffic traffic;
  for (size_t i = 0; i < threads.size(); ++i) {
    threads[i].join();
    traffic.sent += parts[i].sent;
    traffic.answered += parts[i].answered;
    traffic.asked += parts[i].asked;
  }
  return traffic;
}

// Sends one call after the other over one socket as fast as the server takes them. Counts what comes back if `reads`,
// and leaves it in the socket otherwise.
void SendCalls(const Attacked& attacked, std::string_view path, std::string_view message, bool reads,
               Traffic* traffic) {
  const int fd = server::ConnectSocket(attacked.address);
  if (fd < 0) return;
  const std::string headers = server::CallHeaders(path);
  std::string left = server::Http2Start() + Http2Frame(FrameType::kSettings, 1, 0, "");
  for (uint32_t stream = 1; attacked.GoesOn();) {
    if (left.empty()) {
      left = Http2Frame(FrameType::kHeaders, server::kEndHeaders, stream, headers) +
             Http2Frame(FrameType::kData, server::kEndStream, stream, Framed(message, message.size()));
      stream += 2;
    }
    const ssize_t sent = send(fd, left.data(), left.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent < 0 && errno != EAGAIN) break;
    if (sent > 0) {
      traffic->sent += static_cast<uint64_t>(sent);
      left.erase(0, static_cast<size_t>(sent));
    } else {
      absl::SleepFor(absl::Milliseconds(1));
    }
    char bytes[65'536];
    const ssize_t received = reads ? recv(fd, bytes, sizeof(bytes), MSG_DONTWAIT) : -1;
    if (received == 0) break;
    if (received > 0) traffic->answered += static_cast<uint64_t>(received);
  }
  close(fd);
}

// Sends `calls` messages of `promised` bytes over one connection, as far as the server's windows admit them; if
// `message` is shorter, none is complete. Keeps every answer's window shut. Returns when the server has ended the
// connection.
void HoldCalls(const Attacked& attacked, std::string_view path, std::string_view message, size_t promised,
               uint32_t calls, Traffic* traffic) {
  server::Http2Client client(attacked.address);
  if (!client.connected()) return;
  constexpr size_t kDataPiece = 16'384;
  const std::string filler(kDataPiece, 'x');
  const std::string whole = Framed(message, promised);
  const uint64_t size = 5 + promised;
  std::map<uint32_t, uint64_t> sent;
  for (uint32_t i = 0; i < calls; ++i) {
    client.Call(2 * i + 1, path);
    sent[2 * i + 1] = 0;
  }
  while (attacked.GoesOn()) {
    bool moves = false;
    for (auto& [stream, bytes] : sent) {
      if (bytes == size || client.ended(stream)) continue;
      std::string_view piece = filler;
      if (bytes < whole.size()) piece = std::string_view(whole).substr(bytes);
      // The last byte of a message that has no end never comes.
      const uint64_t most = message.size() == promised ? size - bytes : size - bytes - 1;
      const size_t taken = client.SendData(stream, piece.substr(0, std::min<uint64_t>(most, kDataPiece)));
      bytes += taken;
      traffic->sent += taken;
      moves |= taken > 0;
      if (bytes == size) client.HalfClose(stream);
    }
    client.Receive(moves ? 0 : 20);
    if (std::all_of(sent.begin(), sent.end(), [&](const auto& call) { return client.ended(call.first); })) return;
  }
}

// A request of 64 rows, with the number of logprobs that is asked of each.
std::string SampleOf(uint32_t vocabulary, uint32_t logprobs) {
  constexpr int kRows = 64;
  v1::SampleRequest request;
  request.set_dtype(v1::DTYPE_F32);
  request.set_vocabulary_size(vocabulary);
  request.mutable_logits()->assign(kRows * vocabulary * sizeof(float), '\0');
  for (int i = 0; i < kRows; ++i) request.add_rows()->mutable_parameters()->mutable_raw_logprobs()->set_top(logprobs);
  return request.SerializeAsString();
}

// Each answer is larger than a connection's first window.
Traffic UnreadSamples(const Attacked& attacked) {
  const std::string message = SampleOf(1024, 512);
  return OnThreads(attacked, 8,
                   [&](Traffic* traffic) { HoldCalls(attacked, kSamplePath, message, message.size(), 100, traffic); });
}

Traffic LongSamples(const Attacked& attacked) {
  const std::string message = SampleOf(49'152, 1);
  return OnThreads(attacked, 4,
                   [&](Traffic* traffic) { HoldCalls(attacked, kSamplePath, message, message.size(), 50, traffic); });
}

Traffic LongStreams(const Attacked& attacked) {
  return OnThreads(attacked, 4,
                   [&](Traffic* traffic) { HoldCalls(attacked, kStreamPath, "", 12u << 20, 50, traffic); });
}

Traffic RefusedCalls(const Attacked& attacked) {
  return OnThreads(attacked, 10,
                   [&](Traffic* traffic) { SendCalls(attacked, kSamplePath, "\x0a\xff", /*reads=*/false, traffic); });
}

Traffic HealthWatches(const Attacked& attacked) {
  return OnThreads(attacked, 16,
                   [&](Traffic* traffic) { SendCalls(attacked, kWatchPath, "", /*reads=*/true, traffic); });
}

Traffic UnfinishedChecks(const Attacked& attacked) {
  constexpr size_t kPromised = 31u << 20;
  return OnThreads(attacked, 4, [&](Traffic* traffic) { HoldCalls(attacked, kCheckPath, "", kPromised, 48, traffic); });
}

// Requests that come a byte at a time.
Traffic SlowMetrics(const Attacked& attacked) {
  constexpr int kConnections = 500;
  constexpr std::string_view kRequest = "GET /metrics HTTP/1.1\r\nHost: a\r\nX-Filler: ";
  const auto target = server::ListenAddress::Parse(attacked.metrics);
  SORTITION_CHECK(target.ok());
  // A server that takes no more connections is not waited for.
  const auto begin = [&] {
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    SORTITION_CHECK(fd >= 0);
    connect(fd, target->address(), target->size());
    return fd;
  };
  std::vector<int> connections;
  for (int i = 0; i < kConnections; ++i) connections.push_back(begin());
  Traffic traffic;
  for (size_t at = 0; attacked.GoesOn(); ++at) {
    const char byte = at < kRequest.size() ? kRequest[at] : 'x';
    for (int& fd : connections) {
      if (send(fd, &byte, 1, MSG_NOSIGNAL) == 1) {
        ++traffic.sent;
      } else if (errno != EAGAIN) {
        close(fd);
        fd = begin();
      }
    }
    absl::SleepFor(absl::Milliseconds(100));
  }
  for (const int fd : connections) close(fd);
  return traffic;
}

const Scenario kSlotScenarios[] = {
    {"slots", "unread_samples", "800 calls of Sample whose answers nobody reads", &UnreadSamples},
    {"slots", "long_samples", "200 calls of Sample at once, of 12.6 MB each", &LongSamples},
    {"slots", "long_streams", "200 streams at once, each of which sends all but the end of 12 MB", &LongStreams},
    {"slots", "refused_calls", "refused calls on ten connections that read nothing", &RefusedCalls},
    {"slots", "health_watches", "calls of Health/Watch on 16 connections", &HealthWatches},
    {"slots", "unfinished_checks", "calls of Health/Check on four connections whose messages have no end",
     &UnfinishedChecks},
    {"slots", "slow_metrics", "500 connections to the metrics that send a byte at a time", &SlowMetrics},
};

}  // namespace

std::span<const Scenario> SlotScenarios() { return kSlotScenarios; }

}  // namespace sortition::attacks

// sortitiond from outside: settings, signals, logs, metrics, and a flood of connections.
#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "client/cpp/transport/memory_link.h"
#include "client/cpp/transport/unix_socket.h"
#include "service/refusal.h"
#include "tests/server/client_list_file.h"
#include "tests/server/json.h"
#include "tests/server/server_process.h"
#include "tests/server/test_certificates.h"
#include "tests/server/test_server.h"
#include "tests/server/test_stream.h"

namespace sortition::server::process_test {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr char kMetrics[] = "--metrics_listen=127.0.0.1:0";

// With `more` after them, which so goes before them.
std::vector<std::string> Arguments(std::vector<std::string> more = {}) {
  more.insert(more.begin(), {"--listen=127.0.0.1:0", "--metrics_listen=", "--cpu_threads=1"});
  return more;
}

std::shared_ptr<grpc::Channel> Connect(
    const std::string& address,
    std::shared_ptr<grpc::ChannelCredentials> credentials = grpc::InsecureChannelCredentials()) {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_HTTP2_BDP_PROBE, 0);  // a fixed window
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  arguments.SetSslTargetNameOverride("localhost");
  return grpc::CreateCustomChannel(address, credentials, arguments);
}

bool Answers(const std::shared_ptr<grpc::Channel>& channel,
             const std::string& method = "/grpc.health.v1.Health/Check") {
  std::string response;
  return CallRaw(*channel, method, "", &response).ok();
}

// protobuf reports text that is not UTF-8 by itself; once it did so past the log.
TEST(ProcessTest, ProtobufLogsAreJsonLines) {
  ServerProcess process({Arguments(), {}, 0});
  TestStream stream(Connect(process.Serving("listen")));
  v1::StreamRequest request;
  request.mutable_hello()->set_worker_session("\xff\xfe");
  ASSERT_TRUE(stream.Send(request));
  EXPECT_EQ(stream.ReceiveOne().rejected().error().reason(), v1::MALFORMED_MESSAGE);
  EXPECT_THAT(process.AwaitEvent("protobuf"), HasSubstr("UTF-8"));
}

// The stop waited 15 seconds while the metrics had all the connections that they take.
TEST(ProcessTest, IdleMetricsConnectionsHoldUpNoStop) {
  constexpr absl::Duration kMostStop = absl::Seconds(10);
  constexpr int kConnections = 20;  // more than are taken at once
  ServerProcess process({Arguments({kMetrics}), {}, 0});
  const std::string metrics = process.Serving("metrics");
  std::vector<int> connections;
  for (int i = 0; i < kConnections; ++i) {
    connections.push_back(ConnectSocket(metrics));
    ASSERT_GE(connections.back(), 0);
  }
  const absl::Time asked = absl::Now();
  process.Signal(SIGTERM);
  EXPECT_EQ(process.Wait(), 0);
  EXPECT_LT(absl::Now() - asked, kMostStop);
  for (const int fd : connections) close(fd);
}

TEST(ProcessTest, ServesUntilSignalLogsJson) {
  const std::string port_file = TestPath("port");
  ServerProcess process({Arguments({absl::StrCat("--port_file=", port_file)}), {}, 0});
  const std::string address = process.Serving("listen");
  std::ifstream file(port_file);
  std::string port;
  std::getline(file, port);
  EXPECT_EQ(address, absl::StrCat("127.0.0.1:", port));
  {
    TestStream stream(Connect(address));
    stream.Greet("a \"quoted\" worker\n");
    stream.OpenSequence("secret-request");
    ASSERT_TRUE(stream.SendStep("secret-request", 1));
    EXPECT_TRUE(stream.ReceiveOne().results().rows(0).has_draw());
    stream.HalfClose();
    EXPECT_TRUE(stream.Finish().ok());
  }
  EXPECT_NE(process.AwaitEvent("stream_close"), "");
  process.Signal(SIGTERM);
  EXPECT_EQ(process.Wait(), 0);
  std::vector<std::string> events;
  for (const std::string& line : process.lines()) {
    const auto parsed = ParseJson(line);
    ASSERT_TRUE(parsed) << line;
    events.push_back(JsonText(*parsed, "event"));
    EXPECT_FALSE(absl::StrContains(line, "secret-request")) << line;
  }
  EXPECT_EQ(events, (std::vector<std::string>{"device", "checkpoint_key_random", "serving", "stream_open",
                                              "stream_close", "stop_requested", "drain", "drained", "stopped"}));
  unlink(port_file.c_str());
}

TEST(ProcessTest, TracedStepAndModelAreLogged) {
  const std::string traceparent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
  ServerProcess process({Arguments({"--log_level=debug"}), {}, 0});
  TestStream stream(Connect(process.Serving("listen")));
  stream.Greet("engine-3");
  stream.OpenSequence("a");
  const auto opened = ParseJson(process.AwaitEvent("sequence_opened"));
  ASSERT_TRUE(opened);
  EXPECT_EQ(JsonText(*opened, "worker_session"), "engine-3");
  EXPECT_EQ(JsonText(*opened, "model"), "");
  ASSERT_TRUE(stream.SendStep("a", 1, traceparent));
  const auto step = ParseJson(process.AwaitEvent("step"));
  ASSERT_TRUE(step);
  EXPECT_EQ(JsonText(*step, "traceparent"), traceparent);
  EXPECT_EQ(JsonText(*step, "level"), "info");
}

TEST(ProcessTest, AbsentDeviceIsLoggedOthersServe) {
  ServerProcess process({Arguments({"--devices=cuda:no-such,vulkan:no-such,cpu"}), {}, 0});
  EXPECT_EQ(process.Serving("devices"), "cpu0");
  std::vector<std::string> missing;
  for (const std::string& line : process.lines()) {
    const auto parsed = ParseJson(line);
    if (parsed && JsonText(*parsed, "event") == "device_missing") missing.push_back(JsonText(*parsed, "devices"));
  }
  EXPECT_EQ(missing, (std::vector<std::string>{"cuda:no-such", "vulkan:no-such"}));
}

TEST(ProcessTest, AbsentDeviceIsAMetric) {
  ServerProcess process({Arguments({kMetrics, "--devices=cuda:no-such,vulkan:no-such,cpu"}), {}, 0});
  const std::string metrics = HttpGet(process.Serving("metrics"), "/metrics");
  for (const char* sample : {
           "{device=\"cuda:no-such\",state=\"missing\"} 1",
           "{device=\"cuda:no-such\",state=\"serving\"} 0",
           "{device=\"vulkan:no-such\",state=\"missing\"} 1",
           "{device=\"cpu0\",state=\"missing\"} 0",
           "{device=\"cpu0\",state=\"serving\"} 1",
       }) {
    EXPECT_THAT(metrics, HasSubstr(absl::StrCat("\nsortition_device_state", sample)));
  }
}

TEST(ProcessTest, NoDevicePreventsServing) {
  ServerProcess process({Arguments({"--devices=cuda:no-such"}), {}, 0});
  EXPECT_EQ(process.Wait(), 1);
  EXPECT_THAT(process.lines().front(), HasSubstr("device_missing"));
  EXPECT_THAT(process.lines().back(), HasSubstr("--devices: none of them is present"));
}

TEST(ProcessTest, SecondSignalEndsAtOnce) {
  ServerProcess process({Arguments({kMetrics, "--drain_grace=1h", "--stalled_write=1h"}), {}, 0});
  // A client that never reads keeps the drain waiting. It says no hello, so that every message is answered by a
  // refusal.
  TestStream stream(Connect(process.Serving("listen")));
  std::thread sender([&] {
    v1::StreamRequest request;
    request.mutable_close()->set_request_id("r");
    while (stream.Send(request)) {
    }
  });
  // About 800 refusals fit the client's window; with 1500 some must be waiting.
  const std::string metrics = process.Serving("metrics");
  const std::string refusals = "sortition_errors_total{reason=\"PROTOCOL_VIOLATION\"}";
  const absl::Time deadline = absl::Now() + absl::Seconds(20);
  while (Metric(metrics, refusals) < 1500 && absl::Now() < deadline) {
  }
  EXPECT_GE(Metric(metrics, refusals), 1500);
  EXPECT_EQ(HttpGet(metrics, "/health"), "serving\n");
  process.Signal(SIGINT);
  EXPECT_NE(process.AwaitEvent("drain"), "");
  EXPECT_EQ(HttpGet(metrics, "/health"), "draining\n");
  EXPECT_THAT(HttpGet(metrics, "/metrics"), HasSubstr("\nsortition_draining 1\n"));
  process.Signal(SIGTERM);
  EXPECT_EQ(process.Wait(), 1);
  sender.join();
  EXPECT_FALSE(stream.Finish().ok());
}

TEST(ProcessTest, SettingsComeFromEnvironmentAndFile) {
  const std::string flags = TestPath("flags");
  WriteFile(flags, "--listen=127.0.0.1:0\n--metrics_listen=\n");
  ServerProcess process(
      {{absl::StrCat("--flagfile=", flags)}, {"SORTITIOND_LOG_LEVEL=debug", "SORTITIOND_LISTEN=nonsense"}, 0});
  EXPECT_THAT(process.Serving("listen"), HasSubstr("127.0.0.1:"));
  unlink(flags.c_str());
}

// Returns how often the threads of gRPC's pool have waited, which versions before 1.60 do not have.
int WaitsOfPool(pid_t process) {
  int waits = 0;
  for (const auto& thread : std::filesystem::directory_iterator(absl::StrCat("/proc/", process, "/task"))) {
    std::ifstream status(thread.path() / "status");
    std::string line;
    bool is_of_pool = false;
    while (std::getline(status, line)) {
      if (line == "Name:\tevent_engine") is_of_pool = true;
      constexpr std::string_view kWaits = "voluntary_ctxt_switches:";
      if (is_of_pool && line.rfind(kWaits, 0) == 0) waits += std::atoi(line.c_str() + kWaits.size());
    }
  }
  return waits;
}

// gRPC 1.83 read every socket on its pool, and a step took the server twice the processor time.
TEST(ProcessTest, StreamThreadsReadTheirSockets) {
  constexpr int kCalls = 200;
  ServerProcess process({Arguments(), {}, 0});
  const auto channel = Connect(process.Serving("listen"));
  ASSERT_TRUE(Answers(channel));
  const int before = WaitsOfPool(process.pid());
  for (int i = 0; i < kCalls; ++i) ASSERT_TRUE(Answers(channel));
  EXPECT_LT(WaitsOfPool(process.pid()) - before, kCalls / 2);
}

struct BadStart {
  std::vector<std::string> arguments;
  std::vector<std::string> environment;
  int exit_status;
  const char* message;
};

TEST(ProcessTest, StartErrorsAreReported) {
  const std::string loop = TestPath("loop");
  WriteFile(loop, absl::StrCat("--flagfile=", loop, "\n"));
  const BadStart starts[] = {
      {{"--listen=0.0.0.0:0"}, {}, 2, "--insecure"},
      {{"--max_streams=0"}, {}, 2, "--max_streams: 0 is not in 1..1000000"},
      {{"--max_streams=many"}, {}, 1, "max_streams"},
      {{"--no_such_flag=1"}, {}, 1, "no_such_flag"},
      {{}, {"SORTITIOND_NO_SUCH=1"}, 2, "SORTITIOND_NO_SUCH"},
      {{"--devices=abacus"}, {}, 1, "abacus"},
      {{"--devices=cpu,cpu"}, {}, 1, "twice"},
      {{"--cpu_target=avx5"}, {}, 1, "--cpu_target: this machine runs no"},
      {{"--devices=vulkan:no-such-hardware"}, {}, 1, "at least one is needed"},
      {{"--route=pinned:vulkan7"}, {}, 1, "there is no device"},
      {{"--route=fastest"}, {}, 1, "neither auto nor pinned:DEVICE"},
      {{"--recheck_share=1.5"}, {}, 2, "--recheck_share: 1.5 is not in 0..1"},
      {{"--flagfile=/"}, {}, 2, "--flagfile: /: is no regular file"},
      {{absl::StrCat("--flagfile=", loop)}, {}, 2, "is named twice"},
      {{"--listen=unix:/no/such/folder/s"}, {}, 1, "/no/such/folder/s"},
      {{"--tls_certificate=/no.pem", "--tls_key=/no.key"}, {}, 1, "--tls_certificate: /no.pem: cannot be read"},
  };
  for (const BadStart& start : starts) {
    ServerProcess process({start.arguments, start.environment, 0});
    EXPECT_EQ(process.Wait(), start.exit_status) << start.message;
    EXPECT_THAT(process.lines(), Contains(HasSubstr(start.message)));
  }
  unlink(loop.c_str());
}

// An IPv6 spelling of a loopback address, which is taken for one that other machines reach.
constexpr char kExposed[] = "--listen=[::ffff:127.0.0.1]:0";

// gRPC reads past the guard if it polls without epoll.
TEST(ProcessTest, UnguardedListenerIsRefused) {
  const auto start = [](std::vector<std::string> arguments) {
    arguments.insert(arguments.end(), {"--insecure", "--metrics_listen="});
    return ServerProcess({std::move(arguments), {"GRPC_POLL_STRATEGY=poll"}, 0});
  };
  for (const std::vector<std::string>& exposed :
       {std::vector<std::string>{kExposed},
        std::vector<std::string>{"--listen=127.0.0.1:0", "--health_listen=[::ffff:127.0.0.1]:0"}}) {
    ServerProcess refused = start(exposed);
    EXPECT_EQ(refused.Wait(), 1);
    EXPECT_THAT(refused.lines().back(), HasSubstr("reads connections past the guard of HTTP/2"));
    EXPECT_THAT(refused.lines().back(), HasSubstr("--unguarded_http2"));
  }
  ServerProcess local = start({"--listen=127.0.0.1:0"});
  EXPECT_NE(local.AwaitEvent("http2_unguarded"), "");
  EXPECT_NE(local.Serving("listen"), "");
  ServerProcess accepted = start({kExposed, "--unguarded_http2"});
  EXPECT_NE(accepted.Serving("listen"), "");
  ServerProcess guarded({{kExposed, "--insecure", "--metrics_listen="}, {}, 0});
  EXPECT_NE(guarded.Serving("listen"), "");
}

TEST(ProcessTest, TakenMetricsAddressIsAnError) {
  ServerProcess first({Arguments({kMetrics}), {}, 0});
  const std::string taken = first.Serving("metrics");
  ServerProcess second({Arguments({absl::StrCat("--metrics_listen=", taken)}), {}, 0});
  EXPECT_EQ(second.Wait(), 1);
  EXPECT_THAT(second.lines().back(), HasSubstr(absl::StrCat("cannot serve metrics on ", taken)));
}

TEST(ProcessTest, EveryMetricIsServedFromTheStart) {
  ServerProcess process({Arguments({kMetrics}), {}, 0});
  const std::string metrics = HttpGet(process.Serving("metrics"), "/metrics");
  for (const char* sample : {
           "sortition_steps_total 0",
           "sortition_rows_total 0",
           "sortition_tokens_total 0",
           "sortition_payload_bytes_total 0",
           "sortition_replays_total 0",
           "sortition_replayed_tokens_total 0",
           "sortition_live_sequences 0",
           "sortition_state_bytes 0",
           "sortition_queued_rows 0",
           "sortition_streams{transport=\"tcp\"} 0",
           "sortition_streams{transport=\"unix\"} 0",
           "sortition_streams{transport=\"ring\"} 0",
           "sortition_shared_payload_bytes_total 0",
           "sortition_memory_connections 0",
           "sortition_memory_regions 0",
           "sortition_memory_bytes 0",
           "sortition_sequences_opened_total 0",
           "sortition_device_failures_total{device=\"cpu0\"} 0",
           "sortition_draining 0",
           "sortition_step_latency_seconds_count 0",
           "sortition_queue_wait_seconds_count 0",
           "sortition_batches_total{device=\"cpu0\"} 0",
           "sortition_batch_rows_count{device=\"cpu0\"} 0",
           "sortition_kernel_seconds_count{device=\"cpu0\"} 0",
           "sortition_evictions_total{cause=\"count\"} 0",
           "sortition_evictions_total{cause=\"bytes\"} 0",
           "sortition_evictions_total{cause=\"idle\"} 0",
           "sortition_build_info{version=\"",
       }) {
    EXPECT_THAT(metrics, HasSubstr(absl::StrCat("\n", sample)));
  }
  for (const service::Reason reason : service::kAllReasons) {
    EXPECT_THAT(metrics, HasSubstr(absl::StrCat("\nsortition_errors_total{reason=\"",
                                                std::string(service::ReasonName(reason)), "\"} 0")));
  }
}

// The names of a process's threads.
std::vector<std::string> ThreadNames(pid_t process) {
  std::vector<std::string> names;
  for (const auto& thread : std::filesystem::directory_iterator(absl::StrCat("/proc/", process, "/task"))) {
    std::ifstream file(thread.path() / "comm");
    std::string name;
    if (std::getline(file, name)) names.push_back(name);
  }
  return names;
}

// With gRPC's own health service, or a service of callbacks, a thread of that name waits for all sockets, and hands the
// bytes of a stream to the stream's thread.
TEST(ProcessTest, CallbackThreadsReadNoStreams) {
  const std::string admin = absl::StrCat("unix:", TestPath("threads.sock"));
  ServerProcess process({Arguments({"--health_listen=127.0.0.1:0", absl::StrCat("--admin_listen=", admin)}), {}, 0});
  for (const char* listener : {"listen", "health"}) EXPECT_TRUE(Answers(Connect(process.Serving(listener))));
  EXPECT_TRUE(Answers(Connect(process.Serving("listen")), "/sortition.v1.InformationService/GetServerInformation"));
  EXPECT_TRUE(Answers(Connect(admin), "/sortition.v1.AdminService/ListClients"));
  const std::vector<std::string> names = ThreadNames(process.pid());
  EXPECT_THAT(names, Contains("sortitiond"));
  EXPECT_THAT(names, Not(Contains(HasSubstr("nexting_thread"))));
}

// True if health answers within `most`. Each trial uses a new channel: a refused one waits before it tries again.
bool AnswersHealth(const std::string& address,
                   const std::shared_ptr<grpc::ChannelCredentials>& credentials = grpc::InsecureChannelCredentials(),
                   std::chrono::seconds most = std::chrono::seconds(20)) {
  const auto end = std::chrono::system_clock::now() + most;
  for (auto now = end; (now = std::chrono::system_clock::now()) < end;) {
    const auto channel = Connect(address, credentials);
    if (channel->WaitForConnected(std::min(end, now + std::chrono::milliseconds(250))) && Answers(channel)) {
      return true;
    }
  }
  return false;
}

// No look waits for the FIFO's writer.
TEST(ProcessTest, FifoInPlaceOfAListHoldsNothingUp) {
  const ClientListFile list(absl::StrCat("me sample uid:", geteuid()));
  ServerProcess process({Arguments({absl::StrCat("--clients=", list.path())}), {}, 0});
  const std::string address = process.Serving("listen");
  unlink(list.path().c_str());
  ASSERT_EQ(mkfifo(list.path().c_str(), 0600), 0);
  EXPECT_THAT(process.AwaitEvent("file"), HasSubstr("is no regular file"));
  EXPECT_TRUE(AnswersHealth(address));
  process.Signal(SIGTERM);
  EXPECT_EQ(process.Wait(), 0);
}

TEST(ProcessTest, HangUpLooksAtFilesAtOnce) {
  const TestCertificates certificates("hangup");
  ServerProcess process({Arguments({absl::StrCat("--tls_certificate=", certificates.server_certificate_path()),
                                    absl::StrCat("--tls_key=", certificates.server_key_path()), "--tls_refresh=24h"}),
                         {},
                         0});
  EXPECT_TRUE(AnswersHealth(process.Serving("listen"), certificates.ClientCredentials("")));
  WriteFile(certificates.server_key_path(), "");
  process.Signal(SIGHUP);
  EXPECT_THAT(process.AwaitEvent("file"), HasSubstr("is empty"));
  process.Signal(SIGTERM);
  EXPECT_EQ(process.Wait(), 0);
}

TEST(ProcessTest, OtherSignalsEndNothingQuitDrains) {
  ServerProcess process({Arguments(), {}, 0});
  const std::string address = process.Serving("listen");
  for (const int signal : {SIGALRM, SIGIO, SIGPIPE, SIGUSR1, SIGUSR2, SIGVTALRM, SIGXFSZ, SIGHUP}) {
    process.Signal(signal);
  }
  EXPECT_TRUE(AnswersHealth(address));
  process.Signal(SIGQUIT);
  EXPECT_EQ(process.Wait(), 0);
  EXPECT_THAT(process.lines(), Contains(HasSubstr("\"event\":\"drained\"")));
}

// Every connection that a server with few descriptors takes leaves it one fewer. It must keep some for itself, answer
// the streams it has, and serve again as soon as the flood is over.
void ExpectSurvivesFlood(const std::vector<std::string>& arguments,
                         const std::shared_ptr<grpc::ChannelCredentials>& credentials) {
  ServerProcess process({Arguments(arguments), {}, 64});
  const std::string address = process.Serving("listen");
  TestStream open(Connect(address, credentials));
  open.Greet();
  open.OpenSequence("r");

  std::vector<int> flood;  // some are -1
  for (int i = 0; i < 300; ++i) flood.push_back(ConnectSocket(address));
  EXPECT_NE(process.AwaitEvent("connection_refused"), "");
  ASSERT_TRUE(open.SendStep("r", 1));
  EXPECT_TRUE(open.ReceiveOne().results().rows(0).has_draw());
  for (const int fd : flood) close(fd);

  EXPECT_TRUE(AnswersHealth(address, credentials, std::chrono::seconds(1)));
  TestStream after(Connect(address, credentials));
  after.Greet("after");
  process.Signal(SIGTERM);
  EXPECT_EQ(process.Wait(), 0);
}

TEST(ProcessTest, SurvivesConnectionFlood) { ExpectSurvivesFlood({}, grpc::InsecureChannelCredentials()); }

TEST(ProcessTest, SurvivesConnectionFloodWithTls) {
  const TestCertificates certificates("flood");
  ExpectSurvivesFlood({absl::StrCat("--tls_certificate=", certificates.server_certificate_path()),
                       absl::StrCat("--tls_key=", certificates.server_key_path())},
                      certificates.ClientCredentials(""));
}

// Floods every Unix socket, the memory socket too. Health over TCP answers at once after the flood.
TEST(ProcessTest, SurvivesConnectionFloodOnUnixSockets) {
  const std::string streams = absl::StrCat("unix:", TestPath("flood.sock"));
  const std::string memory = absl::StrCat("unix:", TestPath("flood_memory.sock"));
  ServerProcess process({Arguments({absl::StrCat("--listen=127.0.0.1:0,", streams),
                                    absl::StrCat("--memory_listen=", memory), "--max_memory_connections=1000"}),
                         {},
                         64});
  const std::string listen = process.Serving("listen");
  const std::string address = listen.substr(0, listen.find(','));
  TestStream open(Connect(streams));
  open.Greet();
  open.OpenSequence("r");
  for (const auto& [target, type] : {std::pair(streams, SOCK_STREAM), std::pair(memory, SOCK_SEQPACKET)}) {
    std::vector<service::Descriptor> flood;
    for (int i = 0; i < 300; ++i) {
      auto connection = client::ConnectUnix(target, type);
      if (connection.ok()) flood.push_back(*std::move(connection));
    }
    EXPECT_EQ(flood.size(), 300u);
    EXPECT_NE(process.AwaitEvent("connection_refused"), "");
  }
  ASSERT_TRUE(open.SendStep("r", 1));
  EXPECT_TRUE(open.ReceiveOne().results().rows(0).has_draw());
  // The flood's own ends are still being closed, for a second at most.
  const absl::Time end = absl::Now() + absl::Seconds(1);
  EXPECT_TRUE(AnswersHealth(address, grpc::InsecureChannelCredentials(), std::chrono::seconds(1)));
  auto link = client::MemoryLink::Connect(memory);
  while (!link.ok() && absl::Now() < end) link = client::MemoryLink::Connect(memory);
  EXPECT_TRUE(link.ok()) << link.status();
  process.Signal(SIGTERM);
  EXPECT_EQ(process.Wait(), 0);
}

TEST(ProcessTest, TooFewDescriptorsAreAnError) {
  ServerProcess process({Arguments(), {}, 63});
  EXPECT_EQ(process.Wait(), 1);
  EXPECT_THAT(process.lines().back(), HasSubstr("ulimit -n"));
}

}  // namespace
}  // namespace sortition::server::process_test

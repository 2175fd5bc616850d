// Starting of test servers.
#include "tests/server/test_server.h"

#include <grpcpp/generic/generic_stub.h>

#include <chrono>
#include <cstdlib>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "devices/cpu/cpu_device.h"
#include "kernels/check.h"
#include "service/process/process.h"
#include "service/steady_cond_var.h"

namespace sortition::server {
namespace {

constexpr absl::Duration kLongestWait = absl::Seconds(20);

int Count(const std::vector<std::string>& lines, const std::string& event) {
  int count = 0;
  for (const std::string& line : lines) {
    if (absl::StrContains(line, absl::StrCat("\"event\":\"", event, "\""))) ++count;
  }
  return count;
}

std::vector<std::unique_ptr<devices::Device>> Alone(HeldDevice* device) {
  std::vector<std::unique_ptr<devices::Device>> devices;
  devices.emplace_back(device);
  return devices;
}

}  // namespace

void LogLines::Add(std::string_view line) {
  absl::MutexLock lock(&mutex_);
  lines_.emplace_back(line);
  const auto may_go = [&] { return held_.empty() || line.find(held_) == std::string_view::npos; };
  mutex_.Await(absl::Condition(&may_go));
}

void LogLines::Hold(const std::string& event) {
  absl::MutexLock lock(&mutex_);
  held_ = event.empty() ? "" : absl::StrCat("\"event\":\"", event, "\"");
}

std::vector<std::string> LogLines::all() const {
  absl::MutexLock lock(&mutex_);
  return lines_;
}

bool LogLines::Await(const std::string& event, int count) const {
  const auto enough = [&] { return Count(lines_, event) >= count; };
  absl::MutexLock lock(&mutex_);
  return mutex_.AwaitWithTimeout(absl::Condition(&enough), kLongestWait);
}

bool Eventually(const std::function<bool()>& done) {
  const auto end = std::chrono::steady_clock::now() + absl::ToChronoMilliseconds(kLongestWait);
  absl::Mutex mutex;
  service::SteadyCondVar never;
  while (!done()) {
    if (std::chrono::steady_clock::now() >= end) return false;
    absl::MutexLock lock(&mutex);
    never.WaitFor(&mutex, absl::Milliseconds(5), [] { return false; });
  }
  return true;
}

Config TestConfig() {
  Config config;
  config.listen = {"127.0.0.1:0"};
  config.metrics_listen.clear();
  config.cpu_threads = 1;
  config.log_level = LogLevel::kDebug;
  return config;
}

TestServer::TestServer(const Config& config, std::unique_ptr<devices::Device> device,
                       std::vector<service::MissingDevice> missing)
    : config_(config),
      log_(config.log_level, [this](std::string_view line) { lines_.Add(line); }),
      observer_({{.name = "cpu0", .kind = "cpu", .hardware = "any"}}),
      device_(new HeldDevice(device != nullptr ? std::move(device)
                                               : std::make_unique<devices::CpuDevice>(
                                                     devices::CpuDeviceOptions{.threads = config.cpu_threads}))),
      engine_({.limits = config.limits,
               .devices = Alone(device_),
               .clock = &clock_,
               .observer = &observer_,
               .event_log = &event_log_,
               .missing_devices = std::move(missing)}) {
  // The clients of tests read their sockets themselves, too (docs/client.md).
  setenv("GRPC_EXPERIMENTS", "-event_engine_client", /*overwrite=*/0);
  ReadOnStreamThreads();  // as sortitiond does
  SORTITION_CHECK(Validate(config).ok());
  auto server = Server::Start(config, &engine_, &log_, [this] { stops_.fetch_add(1); });
  SORTITION_CHECK(server.ok());
  server_ = std::move(*server);
}

TestServer::~TestServer() {
  // The engine waits for its devices.
  device_->Release();
}

std::string TestServer::target() const { return server_->addresses().front().ToString(); }

std::shared_ptr<grpc::Channel> TestServer::Connect(std::shared_ptr<grpc::ChannelCredentials> credentials) const {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  // A fixed window, so that a client which does not read takes little.
  arguments.SetInt(GRPC_ARG_HTTP2_BDP_PROBE, 0);
  return grpc::CreateCustomChannel(target(), credentials, arguments);
}

std::chrono::system_clock::time_point CallDeadline() { return absl::ToChronoTime(absl::Now() + kLongestWait); }

grpc::Status CallRaw(grpc::Channel& channel, const std::string& method, const std::string& request,
                     std::string* response) {
  grpc::GenericStub stub(std::shared_ptr<grpc::Channel>(&channel, [](grpc::Channel*) {}));
  grpc::ClientContext context;
  context.set_deadline(CallDeadline());
  grpc::CompletionQueue queue;
  const auto wait = [&queue] {
    void* tag;
    bool ok;
    SORTITION_CHECK(queue.Next(&tag, &ok));
    return ok;
  };
  const grpc::Slice slice(request);
  auto call = stub.PrepareCall(&context, method, &queue);
  call->StartCall(nullptr);
  wait();
  call->Write(grpc::ByteBuffer(&slice, 1), nullptr);
  wait();
  grpc::ByteBuffer buffer;
  call->Read(&buffer, nullptr);
  if (wait()) {
    std::vector<grpc::Slice> slices;
    SORTITION_CHECK(buffer.Dump(&slices).ok());
    for (const grpc::Slice& part : slices) response->append(reinterpret_cast<const char*>(part.begin()), part.size());
  }
  call->WritesDone(nullptr);
  wait();
  grpc::Status status;
  call->Finish(&status, nullptr);
  wait();
  return status;
}

}  // namespace sortition::server

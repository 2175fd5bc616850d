// A real server in the test's own process, on a loopback port, and helpers for its clients.
#pragma once

#include <grpcpp/grpcpp.h>

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "monitoring/metrics.h"
#include "service/clock.h"
#include "service/engine.h"
#include "service/log/log.h"
#include "service/process/config.h"
#include "service/server.h"
#include "tests/server/held_device.h"

namespace sortition::server {

// Log lines as they were written. Thread-safe.
class LogLines {
 public:
  // Blocks while its event is held.
  void Add(std::string_view line);
  std::vector<std::string> all() const;
  // Blocks until `count` lines of the event have been written; false after 20 seconds.
  bool Await(const std::string& event, int count = 1) const;
  // Holds threads that write a line of this event, after its line is here; empty: lets all go.
  void Hold(const std::string& event);

 private:
  mutable absl::Mutex mutex_;
  std::vector<std::string> lines_ ABSL_GUARDED_BY(mutex_);
  std::string held_ ABSL_GUARDED_BY(mutex_);  // as in a line; empty: none
};

// One free loopback port, one CPU thread, no metrics endpoint.
Config TestConfig();

class TestServer {
 public:
  // Fails the process if the server cannot start. `device` is named "cpu0"; null: a CPU device. `missing`: other
  // requested devices.
  explicit TestServer(const Config& config = TestConfig(), std::unique_ptr<devices::Device> device = nullptr,
                      std::vector<service::MissingDevice> missing = {});
  ~TestServer();

  Server& server() { return *server_; }
  service::Engine& engine() { return engine_; }
  HeldDevice& device() { return *device_; }
  // Number of times that an operator has requested the end.
  int stops() const { return stops_; }
  LogLines& log_lines() { return lines_; }
  const LogLines& log_lines() const { return lines_; }
  const monitoring::PrometheusObserver& observer() const { return observer_; }
  // Address of the first listener, as gRPC's clients take it.
  std::string target() const;

  // Returns a new connection, not shared with other channels.
  std::shared_ptr<grpc::Channel> Connect(
      std::shared_ptr<grpc::ChannelCredentials> credentials = grpc::InsecureChannelCredentials()) const;

 private:
  const Config config_;
  service::SteadyClock clock_;
  LogLines lines_;
  Log log_;
  LoggedEvents event_log_{&log_};
  monitoring::PrometheusObserver observer_;
  std::atomic<int> stops_ = 0;
  HeldDevice* device_;  // the engine's
  service::Engine engine_;
  std::unique_ptr<Server> server_;
};

// Before which every call of a test must have ended.
std::chrono::system_clock::time_point CallDeadline();

// Looks every few milliseconds until `done()` holds. Returns false if it does not within 20 seconds.
bool Eventually(const std::function<bool()>& done);

// Calls `method` with bytes as they are, for services whose messages are not generated here.
grpc::Status CallRaw(grpc::Channel& channel, const std::string& method, const std::string& request,
                     std::string* response);

}  // namespace sortition::server

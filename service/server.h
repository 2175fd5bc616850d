// The gRPC server around an engine: listeners, services, health, reflection, drain.
#pragma once

#include <grpcpp/server.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "service/calls/admin_service.h"
#include "service/calls/call_queue.h"
#include "service/calls/health_service.h"
#include "service/calls/information_service.h"
#include "service/calls/load_reports.h"
#include "service/calls/memory_server.h"
#include "service/calls/stream_set.h"
#include "service/engine.h"
#include "service/log/log.h"
#include "service/net/accept_loop.h"
#include "service/net/authorization.h"
#include "service/net/credentials.h"
#include "service/net/http2_guard.h"
#include "service/net/listen_socket.h"
#include "service/process/config.h"
#include "service/steady_cond_var.h"

namespace sortition::server {

// A thread that calls a function periodically. Made and stopped by one thread.
class Timekeeper {
 public:
  // Calls `tick` every `period` until Stop.
  Timekeeper(absl::Duration period, std::function<void()> tick);
  // Stops unless Stop was called.
  ~Timekeeper();
  Timekeeper(const Timekeeper&) = delete;
  Timekeeper& operator=(const Timekeeper&) = delete;

  // Blocks until the last tick is over.
  void Stop();

 private:
  // Blocks for a period. Returns whether Stop has been called.
  bool AwaitStop(absl::Duration period);

  absl::Mutex mutex_;
  bool stop_ ABSL_GUARDED_BY(mutex_) = false;
  service::SteadyCondVar stopped_;
  std::thread thread_;
};

// Life: Start -> Drain (optional) -> Stop. These are called by one thread; streams() is thread-safe.
class Server {
 public:
  // Begins to serve before it returns. `config` has been validated. `engine` and `log` are not owned and outlive the
  // server. `stop` is called when an operator ends the server; it returns at once, and the caller then drains and
  // stops. The error names the unusable address or file.
  static absl::StatusOr<std::unique_ptr<Server>> Start(const Config& config, service::Engine* engine, Log* log,
                                                       std::function<void()> stop);
  // Stops unless Stop was called.
  ~Server();
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;

  // The addresses it listens on, with the chosen ports, in the configuration's order.
  const std::vector<ListenAddress>& addresses() const { return addresses_; }
  // The address that serves only health; nothing if not configured.
  const std::optional<ListenAddress>& health_address() const { return health_address_; }
  // The address that serves operators; nothing if not configured.
  const std::optional<ListenAddress>& admin_address() const { return admin_address_; }
  // The number of open sampling streams, over gRPC and over rings.
  uint32_t streams() const;

  // Reports NOT_SERVING, refuses new streams and tells open ones to end. Blocks until their steps are answered or
  // config.drain_grace has passed. Still serves health and information.
  void Drain();
  // Looks at the files of clients and certificates at once. Thread-safe.
  void LookAtFiles();
  // Closes the listeners and ends all calls. Blocks until no call is left. Idempotent.
  void Stop();

 private:
  // A gRPC server whose calls may wait for a tick: its queue has no thread and is polled.
  struct SideServer {
    std::unique_ptr<CallQueue> queue;
    std::unique_ptr<grpc::Server> server;  // null if not configured
  };

  Server(const Config& config, std::unique_ptr<Authorization> authorization, service::Engine* engine, Log* log,
         std::function<void()> stop);
  struct TcpCredentials {
    std::shared_ptr<grpc::ServerCredentials> grpc;
    Http2Guard::Wire wire;
  };
  // A listener whose connections gRPC reads.
  struct Http2Listener {
    ListenAddress address;
    Http2Guard::Wire wire;
    std::function<void(service::Descriptor)> take;
  };

  absl::Status Listen();
  // Returns FAILED_PRECONDITION if strangers reach gRPC past the guard and no flag accepts it.
  absl::Status CheckGuard() const;
  // Reports the connections that the guard has ended.
  void ReportEnded();
  void Tick();
  // Opens a Unix socket to all users if the list of clients names users.
  absl::StatusOr<std::unique_ptr<ListenSocket>> BindSocket(const std::string& address, int type) const;
  // `marks_users`: calls over a Unix socket carry the user of their peer (UserAcceptors).
  absl::StatusOr<AcceptLoop::Listener> Bind(const std::string& address, grpc::ServerBuilder* builder,
                                            const TcpCredentials& tcp_credentials, bool marks_users);
  absl::StatusOr<AcceptLoop::Listener> BindMemory();
  absl::StatusOr<AcceptLoop::Listener> StartHealth();
  absl::StatusOr<AcceptLoop::Listener> StartAdmin(const TcpCredentials& tcp_credentials);

  const Config config_;
  service::Engine& engine_;
  Log& log_;
  const std::unique_ptr<Authorization> authorization_;
  std::unique_ptr<TlsMaterial> tls_;  // null without TLS; set by Listen
  std::atomic<bool> serving_ = true;
  const std::shared_ptr<GuardEvents> guard_events_ = std::make_shared<GuardEvents>();
  std::vector<Http2Listener> http2_listeners_;
  const std::unique_ptr<LoadReports> load_reports_;  // null if off
  StreamSet streams_;
  InformationService information_;
  HealthService health_;
  HealthService health_alone_;  // on the listener for health alone
  AdminService admin_;
  std::vector<std::unique_ptr<CallQueue>> queues_;
  std::vector<std::thread> threads_;  // one for each queue
  // Polled by the timekeeper: health is answered even while every stream's thread is at work on one long message.
  std::unique_ptr<CallQueue> health_queue_;
  std::unique_ptr<grpc::Server> server_;
  SideServer health_server_;
  SideServer admin_server_;
  std::optional<Timekeeper> timekeeper_;
  std::optional<MemoryServer> memory_server_;
  std::optional<AcceptLoop> accept_loop_;
  std::vector<ListenAddress> addresses_;
  std::optional<ListenAddress> health_address_;
  std::optional<ListenAddress> admin_address_;
};

}  // namespace sortition::server

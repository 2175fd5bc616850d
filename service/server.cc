// Building and ending of the gRPC server.
#include "service/server.h"

#include <grpcpp/ext/proto_server_reflection_plugin.h>
#include <grpcpp/resource_quota.h>
#include <grpcpp/security/server_credentials.h>
#include <grpcpp/server_builder.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <mutex>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "service/memory/packet.h"
#include "service/net/http2_window.h"

namespace sortition::server {

Timekeeper::Timekeeper(absl::Duration period, std::function<void()> tick)
    : thread_([this, period, tick = std::move(tick)] {
        while (!AwaitStop(period)) tick();
      }) {}

bool Timekeeper::AwaitStop(absl::Duration period) {
  absl::MutexLock lock(&mutex_);
  return stopped_.WaitFor(&mutex_, period, [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return stop_; });
}

Timekeeper::~Timekeeper() { Stop(); }

void Timekeeper::Stop() {
  {
    absl::MutexLock lock(&mutex_);
    stop_ = true;
    stopped_.NotifyAll();
  }
  if (thread_.joinable()) thread_.join();
}

namespace {

// Calls other than streams that one connection may have open at once: for health, reflection and information.
constexpr uint32_t kOtherCalls = 64;
// Holds a row of 128,256 f32. With a larger window the bytes in sockets leave the processor's caches.
constexpr uint32_t kUnreadStreamBytes = 1 << 19;
constexpr int kFrameBytes = 1 << 20;
constexpr int kReadChunkBytes = 1 << 18;
// Threads for reflection and operators' calls.
constexpr int kMostThreads = 32;
constexpr int kSmallMessageBytes = 1 << 16;  // for listeners that receive no logits
// Time for calls other than streams to end by themselves.
constexpr std::chrono::milliseconds kShutDown{200};
// Period of the timer that expires calls, streams and drains.
constexpr absl::Duration kTick = absl::Milliseconds(20);

void SetTransportOptions(const Config& config, grpc::ServerBuilder* builder) {
  const service::Limits& limits = config.limits;
  // gRPC ends a call whose message exceeds its bound. Our bound refuses the message and keeps the stream, so it must be
  // the smaller one.
  builder->SetMaxReceiveMessageSize(static_cast<int>(2 * limits.max_message_bytes));
  builder->SetMaxSendMessageSize(-1);
  // Logits do not compress, and the bound on received bytes does not see how large a compressed message becomes.
  builder->SetCompressionAlgorithmSupportStatus(GRPC_COMPRESS_DEFLATE, false);
  builder->SetCompressionAlgorithmSupportStatus(GRPC_COMPRESS_GZIP, false);
  builder->AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, static_cast<int>(limits.max_streams + kOtherCalls));
  // Bounds the bytes that the transport holds for a stream that is not read.
  SetHttp2Window(kUnreadStreamBytes, builder);
  // Lets a message of a megabyte come in a few frames and reads instead of a hundred.
  builder->AddChannelArgument(GRPC_ARG_HTTP2_MAX_FRAME_SIZE, kFrameBytes);
  builder->AddChannelArgument(GRPC_ARG_TCP_READ_CHUNK_SIZE, kReadChunkBytes);
  // Detects workers that have vanished, and keeps proxies from closing a stream between two steps.
  builder->AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, 30'000);
  builder->AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, 10'000);
  builder->AddChannelArgument(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  builder->AddChannelArgument(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  builder->AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, service::kMinPingMilliseconds);
  // Closes connections that send nothing or carry no call.
  builder->AddChannelArgument(GRPC_ARG_SERVER_HANDSHAKE_TIMEOUT_MS, 20'000);
  builder->AddChannelArgument(GRPC_ARG_MAX_CONNECTION_IDLE_MS, 600'000);

  grpc::ResourceQuota quota;
  quota.SetMaxThreads(kMostThreads);
  // Covers held messages, the bytes of unread streams, and partly received messages. Each stream may have one of the
  // latter, so memory can still run short. gRPC then ends calls; workers open them again and lose nothing.
  quota.Resize(config.limits.max_received_bytes + uint64_t{limits.max_streams} * kUnreadStreamBytes);
  builder->SetResourceQuota(quota);
}

// Reflection is process-wide in gRPC, and must be enabled before a server is built.
void EnableReflection() {
  static std::once_flag once;
  std::call_once(once, [] { grpc::reflection::InitProtoReflectionServerBuilderPlugin(); });
}

void ShutDown(grpc::Server& server) { server.Shutdown(std::chrono::system_clock::now() + kShutDown); }

absl::Status NotStarted() { return absl::InternalError("gRPC could not start its server; its log lines say why"); }

}  // namespace

Server::Server(const Config& config, std::unique_ptr<Authorization> authorization, service::Engine* engine, Log* log,
               std::function<void()> stop)
    : config_(config),
      engine_(*engine),
      log_(*log),
      authorization_(std::move(authorization)),
      load_reports_(config.load_reports ? std::make_unique<LoadReports>(config, authorization_.get(), engine,
                                                                        [this] { return streams(); })
                                        : nullptr),
      streams_(config, authorization_.get(), engine, log, load_reports_.get()),
      information_(config, authorization_.get(), engine, [this] { return streams(); }),
      health_(config.limits, &serving_),
      health_alone_(config.limits, &serving_),
      admin_(authorization_.get(), engine, log, std::move(stop)) {}

Server::~Server() { Stop(); }

absl::StatusOr<std::unique_ptr<Server>> Server::Start(const Config& config, service::Engine* engine, Log* log,
                                                      std::function<void()> stop) {
  EnableReflection();
  auto authorization = Authorization::Read(config.clients, &engine->observer(), &engine->event_log());
  if (!authorization.ok()) return authorization.status();
  std::unique_ptr<Server> server(new Server(config, *std::move(authorization), engine, log, std::move(stop)));
  if (absl::Status status = server->Listen(); !status.ok()) return status;
  return server;
}

absl::StatusOr<std::unique_ptr<ListenSocket>> Server::BindSocket(const std::string& address, int type) const {
  const auto parsed = ListenAddress::Parse(address);
  if (!parsed.ok()) return parsed.status();
  auto socket = ListenSocket::Bind(*parsed, type);
  if (socket.ok() && parsed->is_unix() && authorization_->lists_users()) {
    if (absl::Status status = (*socket)->OpenToAllUsers(); !status.ok()) return status;
  }
  return socket;
}

absl::StatusOr<AcceptLoop::Listener> Server::Bind(const std::string& address, grpc::ServerBuilder* builder,
                                                  const TcpCredentials& tcp_credentials, bool marks_users) {
  auto socket = BindSocket(address, SOCK_STREAM);
  if (!socket.ok()) return socket.status();
  const int listener = (*socket)->fd();
  const ListenAddress bound = (*socket)->address();
  std::function<void(service::Descriptor)> pass_on;
  if (bound.is_unix() && marks_users) {
    auto acceptors = std::make_shared<UserAcceptors>(builder);
    pass_on = [this, acceptors, listener](service::Descriptor connection) {
      const uid_t user = service::UserOfPeer(connection.get());
      if (acceptors->Take(user, listener, std::move(connection))) return;
      log_.Write(LogLevel::kWarning, "connection_refused", {{"error", "processes of too many users have connected"}});
    };
  } else {
    // Without a list of clients all peers of a Unix socket are the same caller.
    const auto credentials = bound.is_unix() ? grpc::InsecureServerCredentials() : tcp_credentials.grpc;
    using Builder = grpc::ServerBuilder::experimental_type;
    std::shared_ptr<grpc::experimental::ExternalConnectionAcceptor> acceptor =
        builder->experimental().AddExternalConnectionAcceptor(Builder::ExternalConnectionType::FROM_FD, credentials);
    pass_on = [acceptor, listener](service::Descriptor connection) {
      grpc::experimental::ExternalConnectionAcceptor::NewConnectionParameters parameters;
      parameters.listener_fd = listener;
      parameters.fd = connection.Release();
      acceptor->HandleNewConnection(&parameters);
    };
  }
  if (config_.unguarded_http2) return AcceptLoop::Listener{std::move(*socket), std::move(pass_on)};
  const auto wire = bound.is_unix() ? Http2Guard::Wire::kPlain : tcp_credentials.wire;
  auto take = [this, wire, pass_on = std::move(pass_on)](service::Descriptor connection) {
    Http2Guard::Instance().Add(connection.get(), wire, guard_events_);
    pass_on(std::move(connection));
  };
  http2_listeners_.push_back({bound, wire, take});
  return AcceptLoop::Listener{std::move(*socket), std::move(take)};
}

absl::Status Server::CheckGuard() const {
  for (const auto wire : {Http2Guard::Wire::kPlain, Http2Guard::Wire::kTls}) {
    // The server's own connections cannot pass a handshake that demands a client's certificate. Strangers cannot
    // either.
    if (wire == Http2Guard::Wire::kTls && !config_.tls_client_ca.empty()) continue;
    const Http2Listener* any = nullptr;
    const Http2Listener* exposed = nullptr;
    for (const Http2Listener& listener : http2_listeners_) {
      if (listener.wire != wire) continue;
      any = &listener;
      if (!listener.address.is_local()) exposed = &listener;
    }
    if (any == nullptr || Http2Guard::Instance().Sees((exposed != nullptr ? exposed : any)->take, wire)) continue;
    if (exposed != nullptr) {
      return absl::FailedPreconditionError(absl::StrCat(
          exposed->address.ToString(),
          " can be reached from other machines, and this build of gRPC reads connections past the guard of HTTP/2: "
          "set --tls_client_ca, or --unguarded_http2 to accept that callers can take memory and time before they are "
          "authorised"));
    }
    log_.Write(LogLevel::kWarning, "http2_unguarded",
               {{"listener", any->address.ToString()},
                {"message", "this build of gRPC reads connections past the guard of HTTP/2"}});
  }
  return absl::OkStatus();
}

void Server::ReportEnded() {
  std::vector<GuardEvents::Ended> named;
  const auto counts = guard_events_->Take(&named);
  for (size_t i = 0; i < counts.size(); ++i) {
    if (counts[i] == 0) continue;
    engine_.observer().ConnectionsEnded(FrameExcessName(static_cast<FrameExcess>(i)), counts[i]);
  }
  for (const GuardEvents::Ended& ended : named) {
    log_.Write(LogLevel::kWarning, "connection_ended",
               {{"peer", ended.peer}, {"excess", FrameExcessName(ended.excess)}});
  }
}

absl::StatusOr<AcceptLoop::Listener> Server::BindMemory() {
  auto socket = BindSocket(config_.memory_listen, SOCK_SEQPACKET);
  if (!socket.ok()) return socket.status();
  // An absolute path, because workers may run in another folder.
  engine_.regions().SetAddress(
      absl::StrCat("unix:", std::filesystem::absolute((*socket)->address().unix_path()).string()));
  memory_server_.emplace(config_, authorization_.get(), &engine_, &log_);
  return AcceptLoop::Listener{std::move(*socket),
                              [this](service::Descriptor connection) { memory_server_->Take(std::move(connection)); }};
}

absl::StatusOr<AcceptLoop::Listener> Server::StartHealth() {
  grpc::ServerBuilder builder;
  SetTransportOptions(config_, &builder);
  builder.SetMaxReceiveMessageSize(kSmallMessageBytes);
  auto listener = Bind(config_.health_listen, &builder, {grpc::InsecureServerCredentials(), Http2Guard::Wire::kPlain},
                       /*marks_users=*/false);
  if (!listener.ok()) return listener.status();
  health_address_ = listener->socket->address();
  health_alone_.Register(&builder);
  health_server_.queue = std::make_unique<CallQueue>(&builder);
  health_server_.server = builder.BuildAndStart();
  if (health_server_.server == nullptr) return NotStarted();
  health_alone_.Start(health_server_.queue.get());
  return listener;
}

absl::StatusOr<AcceptLoop::Listener> Server::StartAdmin(const TcpCredentials& tcp_credentials) {
  grpc::ServerBuilder builder;
  SetTransportOptions(config_, &builder);
  builder.SetMaxReceiveMessageSize(kSmallMessageBytes);
  auto listener = Bind(config_.admin_listen, &builder, tcp_credentials, /*marks_users=*/true);
  if (!listener.ok()) return listener.status();
  admin_address_ = listener->socket->address();
  builder.RegisterService(&admin_);
  // The calls run on gRPC's threads, which leave sockets alone if the server has a queue that is polled.
  admin_server_.queue = std::make_unique<CallQueue>(&builder);
  admin_server_.server = builder.BuildAndStart();
  if (admin_server_.server == nullptr) return NotStarted();
  return listener;
}

absl::Status Server::Listen() {
  if (absl::Status status = AcceptLoop::CheckDescriptorLimit(); !status.ok()) return status;
  if (config_.uses_tls()) {
    auto tls =
        TlsMaterial::Start({config_.tls_certificate, config_.tls_key, config_.tls_client_ca, config_.tls_refresh},
                           &engine_.observer(), &engine_.event_log());
    if (!tls.ok()) return tls.status();
    tls_ = *std::move(tls);
  }
  const TcpCredentials tcp_credentials = {tls_ ? tls_->Credentials() : grpc::InsecureServerCredentials(),
                                          tls_ ? Http2Guard::Wire::kTls : Http2Guard::Wire::kPlain};

  grpc::ServerBuilder builder;
  SetTransportOptions(config_, &builder);
  std::vector<AcceptLoop::Listener> listeners;
  for (const std::string& address : config_.listen) {
    auto listener = Bind(address, &builder, tcp_credentials, authorization_->has_list());
    if (!listener.ok()) return listener.status();
    addresses_.push_back(listener->socket->address());
    listeners.push_back(std::move(*listener));
  }
  if (!config_.memory_listen.empty()) {
    auto listener = BindMemory();
    if (!listener.ok()) return listener.status();
    listeners.push_back(std::move(*listener));
  }
  streams_.Register(&builder);
  information_.Register(&builder);
  if (load_reports_) load_reports_->Register(&builder);
  health_.Register(&builder);
  for (uint32_t i = 0; i < config_.stream_threads; ++i) queues_.push_back(std::make_unique<CallQueue>(&builder));
  health_queue_ = std::make_unique<CallQueue>(&builder, /*takes_connections=*/false);

  if (!config_.health_listen.empty()) {
    auto listener = StartHealth();
    if (!listener.ok()) return listener.status();
    listener->counts = false;
    listeners.push_back(std::move(*listener));
  }
  if (!config_.admin_listen.empty()) {
    auto listener = StartAdmin(tcp_credentials);
    if (!listener.ok()) return listener.status();
    listener->counts = false;
    listeners.push_back(std::move(*listener));
  }
  server_ = builder.BuildAndStart();
  if (server_ == nullptr) return NotStarted();
  streams_.Start(queues_);
  information_.Start(queues_.front().get());
  if (load_reports_) load_reports_->Start(queues_.front().get());
  health_.Start(health_queue_.get());
  for (const auto& queue : queues_) threads_.emplace_back([queue = queue.get()] { queue->Serve(); });
  timekeeper_.emplace(kTick, [this] { Tick(); });
  if (absl::Status status = CheckGuard(); !status.ok()) return status;
  accept_loop_.emplace(
      std::move(listeners), [this](uid_t user) { return authorization_->MayConnect(user); },
      config_.limits.max_connections, &log_);
  return absl::OkStatus();
}

void Server::Tick() {
  engine_.Sweep();
  Http2Guard::Instance().Tick();
  ReportEnded();
  const absl::Time now = engine_.clock().Now();
  authorization_->files().Follow(now);
  if (tls_) tls_->files().Follow(now);
  streams_.Tick(now);
  information_.Tick(now);
  if (load_reports_) load_reports_->Tick(now);
  health_.Tick(now);
  health_alone_.Tick(now);
  health_queue_->Poll();
  if (health_server_.queue != nullptr) health_server_.queue->Poll();
  if (admin_server_.queue != nullptr) admin_server_.queue->Poll();
}

void Server::LookAtFiles() {
  authorization_->files().Look();
  if (tls_) tls_->files().Look();
}

uint32_t Server::streams() const { return streams_.streams() + (memory_server_ ? memory_server_->rings() : 0); }

void Server::Drain() {
  log_.Write(LogLevel::kInfo, "drain",
             {{"streams", streams()}, {"grace_seconds", absl::ToDoubleSeconds(config_.drain_grace)}});
  serving_.store(false, std::memory_order_release);
  const absl::Time end = engine_.clock().Now() + config_.drain_grace;
  if (memory_server_) memory_server_->StartDraining();
  uint32_t left = streams_.Drain(config_.drain_grace);
  if (memory_server_) left += memory_server_->AwaitRings(std::max(end - engine_.clock().Now(), absl::ZeroDuration()));
  log_.Write(left == 0 ? LogLevel::kInfo : LogLevel::kWarning, "drained", {{"streams_left", left}});
}

void Server::Stop() {
  if (server_ == nullptr) return;
  if (accept_loop_) accept_loop_->Stop();
  if (memory_server_) memory_server_->Stop();
  ShutDown(*server_);
  std::vector<CallQueue*> queues = {health_queue_.get()};
  for (const auto& queue : queues_) queues.push_back(queue.get());
  for (const SideServer* side : {&health_server_, &admin_server_}) {
    if (side->server == nullptr) continue;
    ShutDown(*side->server);
    queues.push_back(side->queue.get());
  }
  // gRPC asserts that no event reaches a queue that has been shut down.
  streams_.AwaitNoCalls();
  for (CallQueue* queue : queues) queue->AwaitNoCalls();
  timekeeper_->Stop();
  for (CallQueue* queue : queues) queue->ShutDown();
  for (std::thread& thread : threads_) thread.join();
  server_.reset();
}

}  // namespace sortition::server

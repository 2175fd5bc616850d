// Makes channels, and byte buffers that refer to the caller's memory.
#include "client/cpp/transport/grpc_channel.h"

#include <fcntl.h>
#include <sys/socket.h>

#include <algorithm>
#include <atomic>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/cpp/transport/unix_socket.h"
#include "grpc/grpc.h"
#include "grpcpp/create_channel.h"
#include "grpcpp/create_channel_posix.h"
#include "kernels/check.h"

namespace sortition::client {
namespace {

constexpr int kKeepaliveTimeoutMs = 10'000;
constexpr int kUnixSendBufferBytes = 1 << 20;

// A message's hold, kept until gRPC has released the last of its slices. The counter orders the hand-over between
// threads by itself (release store, acquire decrement), without relying on gRPC.
struct SliceHold {
  std::shared_ptr<void> hold;
  std::atomic<size_t> slices;

  static void EndSlice(void* self) {
    auto* held = static_cast<SliceHold*>(self);
    if (held->slices.fetch_sub(1, std::memory_order_acq_rel) == 1) delete held;
  }
};

}  // namespace

void AddToken(const std::string& token, grpc::ClientContext* context) {
  if (!token.empty()) context->AddMetadata("authorization", absl::StrCat("Bearer ", token));
}

void KeepGrpcRunning() { [[maybe_unused]] static const bool kept = (grpc_init(), true); }

std::shared_ptr<grpc::ChannelCredentials> MakeCredentials(const std::optional<TlsOptions>& tls) {
  if (!tls) return grpc::InsecureChannelCredentials();
  grpc::SslCredentialsOptions options;
  options.pem_root_certs = tls->root_certificates;
  options.pem_cert_chain = tls->certificate_chain;
  options.pem_private_key = tls->private_key;
  return grpc::SslCredentials(options);
}

std::shared_ptr<grpc::Channel> MakeChannel(const std::string& target, const ChannelOptions& options) {
  grpc::ChannelArguments arguments;
  // A subchannel shared with another stream would share its connection and its back-off after failures.
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  arguments.SetMaxReceiveMessageSize(-1);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, static_cast<int>(absl::ToInt64Milliseconds(options.keepalive)));
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, kKeepaliveTimeoutMs);
  arguments.SetInt(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);  // no limit: a stream may be idle for long
  if (!options.server_name.empty()) arguments.SetSslTargetNameOverride(options.server_name);
  if (IsUnixTarget(target) && !options.secure) {
    // gRPC would keep the socket's default buffer, which is several times smaller than a message of a megabyte.
    absl::StatusOr<service::Descriptor> socket = ConnectUnix(target, SOCK_STREAM, RetryBudget(absl::ZeroDuration()));
    if (socket.ok()) {
      setsockopt(socket->get(), SOL_SOCKET, SO_SNDBUF, &kUnixSendBufferBytes, sizeof(kUnixSendBufferBytes));
      SORTITION_CHECK(fcntl(socket->get(), F_SETFL, O_NONBLOCK) == 0);
      return grpc::CreateCustomInsecureChannelFromFd("localhost", socket->Release(), arguments);
    }
  }
  // If connecting has failed above, gRPC tries again and reports the failure.
  return grpc::CreateCustomChannel(target, options.credentials, arguments);
}

grpc::ByteBuffer ToByteBuffer(OutgoingMessage message) {
  const auto borrowed = [](const Segment& segment) { return !segment.borrowed.empty(); };
  const auto count = static_cast<size_t>(std::ranges::count_if(message.segments, borrowed));
  SliceHold* held = nullptr;
  if (count > 0) {
    held = new SliceHold{std::move(message.hold), {}};
    held->slices.store(count, std::memory_order_release);
  }
  std::vector<grpc::Slice> slices;
  slices.reserve(message.segments.size());
  for (const Segment& segment : message.segments) {
    if (borrowed(segment)) {
      slices.emplace_back(const_cast<std::byte*>(segment.borrowed.data()), segment.borrowed.size(), SliceHold::EndSlice,
                          held);
    } else {
      slices.emplace_back(segment.owned);
    }
  }
  return grpc::ByteBuffer(slices.data(), slices.size());
}

}  // namespace sortition::client

// Channels to a server, their credentials, and outgoing messages as gRPC takes them.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "absl/time/time.h"
#include "client/cpp/transport/transport.h"
#include "grpcpp/channel.h"
#include "grpcpp/client_context.h"
#include "grpcpp/security/credentials.h"
#include "grpcpp/support/byte_buffer.h"
#include "sortition/options.h"

namespace sortition::client {

// Keeps gRPC initialised for the life of the process. Without it gRPC shuts itself down when its last channel is
// destroyed, and this clean-up would run at the same time as a new channel or the end of the process. Called before a
// channel is made. Thread-safe.
void KeepGrpcRunning();

// Adds `token` to the metadata of a call, as a bearer token, if it is not empty.
void AddToken(const std::string& token, grpc::ClientContext* context);

// Returns the credentials for `tls`; plain text if it is absent.
std::shared_ptr<grpc::ChannelCredentials> MakeCredentials(const std::optional<TlsOptions>& tls);

struct ChannelOptions {
  std::shared_ptr<grpc::ChannelCredentials> credentials;
  std::string server_name;  // expected in the certificate; empty: the target's host
  absl::Duration keepalive;
  bool secure = false;
};

// Makes a channel with a connection that no other channel uses.
std::shared_ptr<grpc::Channel> MakeChannel(const std::string& target, const ChannelOptions& options);

// Converts a message without copying the borrowed bytes: its slices refer to the caller's memory. The message's hold
// ends with the last of them.
grpc::ByteBuffer ToByteBuffer(OutgoingMessage message);

}  // namespace sortition::client

// Starts the client's streams: to a target over gRPC or over rings, or to the service's own core in this process.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>

#include "client/cpp/grpc_transport.h"
#include "client/cpp/in_process_transport.h"
#include "client/cpp/options.h"
#include "client/cpp/ring_transport.h"
#include "client/cpp/transport.h"

namespace sortition::client {

class TargetConnector final : public Connector {
 public:
  explicit TargetConnector(const ClientOptions& options) : targets_(options.targets.size()), in_process_(options) {
    if (targets_ == 0) return;
    if (options.transport == TransportKind::kRing) {
      rings_.emplace(options);
    } else {
      grpc_.emplace(options);
    }
  }

  std::shared_ptr<Transport> Start(size_t target, uint64_t stream, StreamEvents* events) override {
    if (target >= targets_) return in_process_.Start(stream, events);
    return rings_ ? rings_->Start(target, stream, events) : grpc_->Start(target, stream, events);
  }

 private:
  const size_t targets_;
  std::optional<GrpcConnector> grpc_;  // one of the two, if there are targets
  std::optional<RingConnector> rings_;
  InProcessConnector in_process_;
};

}  // namespace sortition::client

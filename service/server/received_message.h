// The bytes of one message as gRPC received them, and the bound on all of them together.
#pragma once

#include <grpcpp/support/byte_buffer.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "devices/device.h"

namespace sortition::server {

// Counts the bytes of received messages that are still held, by streams and by rows in flight. Thread-safe.
class ReceiveBudget {
 public:
  explicit ReceiveBudget(uint64_t most_bytes) : most_bytes_(most_bytes) {}

  // False while messages hold as much as they may: streams are not read then. A message whose reading had begun may
  // exceed it.
  bool HasRoom() const { return held_bytes_.load(std::memory_order_relaxed) < most_bytes_; }

 private:
  friend class ReceivedMessage;
  const uint64_t most_bytes_;
  std::atomic<uint64_t> held_bytes_ = 0;
};

// Immutable. Holds references to gRPC's slices, no copy of their bytes.
class ReceivedMessage {
 public:
  // Empties `buffer`.
  ReceivedMessage(grpc::ByteBuffer* buffer, std::shared_ptr<ReceiveBudget> budget);
  ~ReceivedMessage();
  ReceivedMessage(const ReceivedMessage&) = delete;
  ReceivedMessage& operator=(const ReceivedMessage&) = delete;

  // The message's bytes in order; they live as long as this object.
  std::span<const devices::ByteSegment> segments() const { return segments_; }
  uint64_t bytes() const { return bytes_; }

 private:
  const std::shared_ptr<ReceiveBudget> budget_;
  uint64_t bytes_ = 0;
  std::vector<grpc::Slice> slices_;
  std::vector<devices::ByteSegment> segments_;
};

}  // namespace sortition::server

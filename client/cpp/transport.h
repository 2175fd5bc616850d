// One stream to whoever samples: the seam between the client's protocol and how its messages travel.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "client/cpp/options.h"
#include "sortition/v1/sampling.pb.h"

namespace sortition::client {

class RetryBudget;
class SharedMemory;

// Part of an encoded StreamRequest: bytes of its own, or bytes of the caller's.
struct Segment {
  std::string owned;
  std::span<const std::byte> borrowed;
};

// An encoded StreamRequest in parts, to be sent in order.
struct OutgoingMessage {
  std::vector<Segment> segments;
  // Kept by the transport for as long as it refers to `borrowed` bytes. Its deleter may run on any thread, also inside
  // the transport's library, so it takes no lock that is held while a transport is called.
  std::shared_ptr<void> hold;

  uint64_t bytes() const {
    uint64_t sum = 0;
    for (const Segment& segment : segments) sum += segment.owned.size() + segment.borrowed.size();
    return sum;
  }
};

// Told what happens to the streams of a connector. Outlives the connector. Calls come from the connector's threads,
// never from within a call to a transport but Poll; those of one stream in order. Thread-safe.
class StreamEvents {
 public:
  virtual ~StreamEvents() = default;
  // The stream has memory shared with its server, which Transport::memory has from now on; before its welcome. May
  // block, for as long as there is patience.
  virtual void OnMemory(SharedMemory*, const RetryBudget&) {}
  virtual void OnResponse(uint64_t stream, v1::StreamResponse response) = 0;
  // The last event of a stream, once for each stream started. Never OK: a stream that ends is a stream to replace.
  virtual void OnEnded(uint64_t stream, absl::Status status) = 0;
};

// Thread-safe. May be destroyed at any time: the stream is then cancelled.
class Transport {
 public:
  virtual ~Transport() = default;
  // Queues a message; never blocks, and starts no work that could call back. Dropped if the stream has ended, or ends
  // because the message does not fit it.
  virtual void Send(OutgoingMessage message) = 0;
  // Sends what is queued, as far as it goes without waiting. Called without locks after every round of Send.
  virtual void Flush() = 0;
  // Ends the stream; OnEnded follows, and every `hold` is let go soon.
  virtual void Cancel() = 0;
  // Reads answers on the caller's thread until `done` is true, for a while; does nothing where that would gain nothing.
  // Called without locks. Events may come from within it.
  virtual void Poll(absl::FunctionRef<bool()>) {}
  // The memory shared with the server, null if there is none. Constant from the server's welcome on, but for
  // DropMemory.
  virtual std::shared_ptr<SharedMemory> memory() { return nullptr; }
  // The server does not know the stream's memory: there is none any more, and in_use says why.
  virtual void DropMemory(const std::string&) {}
  // Of one message; a larger one ends the stream.
  virtual uint64_t max_message_bytes() { return UINT64_MAX; }
  // A message that a stream may have is larger than this one's can be: true if the next stream's can, and this one
  // ends.
  virtual bool Outgrow() { return false; }
  // How bytes travel, with the reason where a better way was tried in vain. Constant as memory() is.
  virtual TransportInUse in_use() { return {}; }
};

// Returns a reference to `stream` with which the stream is cancelled when its last copy goes.
template <typename Stream>
std::shared_ptr<Transport> CancelledWithLast(std::shared_ptr<Stream> stream) {
  Transport* const transport = stream.get();
  return std::shared_ptr<Transport>(transport, [stream = std::move(stream)](Transport* last) { last->Cancel(); });
}

// Starts streams. Thread-safe. Destruction is allowed once every stream has ended.
class Connector {
 public:
  virtual ~Connector() = default;
  // Starts stream number `stream` to `target` and returns at once. `target` is an index into ClientOptions::targets, or
  // their number for the in-process fallback.
  virtual std::shared_ptr<Transport> Start(size_t target, uint64_t stream, StreamEvents* events) = 0;
};

}  // namespace sortition::client

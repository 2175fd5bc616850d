// The interface between the client's protocol and the ways in which its messages travel: one stream to a sampler.
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
#include "client/local/local_sampler.h"
#include "service/arena_message.h"
#include "sortition/options.h"
#include "sortition/v1/sampling.pb.h"

namespace sortition::client {

class RetryBudget;
class SharedMemory;

// Part of an encoded StreamRequest: either bytes that it owns or bytes of the caller.
struct Segment {
  std::string owned;
  std::span<const std::byte> borrowed;
};

// An encoded StreamRequest in parts, to be sent in order.
struct OutgoingMessage {
  std::vector<Segment> segments;
  // The transport keeps it while it refers to `borrowed` bytes. Its deleter may run on any thread, also inside the
  // transport's library, so it must not take a lock that is held while a transport is called.
  std::shared_ptr<void> hold;

  uint64_t bytes() const {
    uint64_t sum = own_bytes();
    for (const Segment& segment : segments) sum += segment.borrowed.size();
    return sum;
  }
  // Those that are not borrowed, the fields among them.
  uint64_t own_bytes() const {
    uint64_t sum = 0;
    for (const Segment& segment : segments) sum += segment.owned.size();
    return sum;
  }
};

// A message from the server, whose parts are freed together.
class ReceivedResponse {
 public:
  v1::StreamResponse& message() { return message_; }

 private:
  static google::protobuf::ArenaOptions Options() {
    google::protobuf::ArenaOptions options;
    options.start_block_size = 4 << 10;
    options.max_block_size = 64 << 10;
    return options;
  }

  google::protobuf::Arena arena_{Options()};
  v1::StreamResponse& message_ = *service::NewInArena<v1::StreamResponse>(&arena_);
};

// Receives the events of a connector's streams. Outlives the connector. Calls are made on the connector's threads and,
// among the calls to a transport, from within Poller::Poll alone. Events of one stream arrive in order. Thread-safe.
class StreamEvents {
 public:
  virtual ~StreamEvents() = default;
  // The stream has memory shared with its server: Transport::memory returns it. Called before the welcome. May block
  // until the budget is used up.
  virtual void OnMemory(SharedMemory*, const RetryBudget&) {}
  // `response` lives until this returns.
  virtual void OnResponse(uint64_t stream, const v1::StreamResponse& response) = 0;
  // Answers of a stream's LocalSampler.
  virtual void OnLocalOpened(uint64_t /*stream*/, uint64_t /*epoch*/, LocalOpenResult) {}
  virtual void OnLocalResults(uint64_t /*stream*/, uint64_t /*batch_id*/, std::vector<LocalResult>) {}
  // The last event of a stream, once for each stream started. The status is never OK: a stream that ends is replaced.
  virtual void OnEnded(uint64_t stream, absl::Status status) = 0;
};

// Work that a waiting caller does for a stream on its own thread: reads answers, or samples rows. Thread-safe. Does not
// keep the stream from being cancelled.
class Poller {
 public:
  virtual ~Poller() = default;
  // Works at most until `done` is true. `awaited` tells at the end whether others wait for the stream who do not poll.
  // Called without locks. Events may be delivered from within it.
  virtual void Poll(absl::FunctionRef<bool()> done, absl::FunctionRef<bool()> awaited) = 0;
};

// Thread-safe. May be destroyed at any time: the stream is then cancelled.
class Transport {
 public:
  virtual ~Transport() = default;
  // Returns the sampler if rows are sampled in this process, and null if messages travel to a server. A stream with a
  // sampler needs no welcome, and nothing is sent on it. Constant.
  virtual LocalSampler* sampler() { return nullptr; }
  // Queues a message. Never blocks and starts no work that could call back. The message is dropped if the stream has
  // ended, or ends because the message does not fit it.
  virtual void Send(OutgoingMessage message) = 0;
  // Sends queued messages as far as possible without blocking. Called without locks after every round of Send. `polls`:
  // the caller polls next.
  virtual void Flush(bool polls) = 0;
  // Ends the stream. OnEnded follows, and every `hold` is released soon.
  virtual void Cancel() = 0;
  // Returns the work that a waiting caller does for the stream; null if there is none. Constant as memory() is.
  virtual std::shared_ptr<Poller> poller() { return nullptr; }
  // Returns the memory shared with the server, null if there is none. Constant after the server's welcome, except for
  // DropMemory.
  virtual std::shared_ptr<SharedMemory> memory() { return nullptr; }
  // Drops the shared memory, because the server does not know it. in_use then gives the reason.
  virtual void DropMemory(const std::string&) {}
  // Returns the size limit of one message; a larger one ends the stream.
  virtual uint64_t max_message_bytes() { return UINT64_MAX; }
  // Called when a message exceeds this stream's limit, but not the server's. True if the next stream can carry it; this
  // one then ends.
  virtual bool Outgrow() { return false; }
  // Returns how messages and rows travel, with the reason where a better way failed. Constant as memory() is.
  virtual TransportInUse in_use() { return {}; }
};

// Returns a reference to `stream` that cancels it when the last copy is destroyed.
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

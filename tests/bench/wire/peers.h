// Baselines of the service's transports: processes that take bytes, or only a word, by the plainest means and do with
// the bytes the least that the service must do, a maximum over their floats.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

namespace sortition::bench {

// A forked process that ends when this does. Create it before the process has threads. Not thread-safe.
class Peer {
 public:
  virtual ~Peer();
  Peer(const Peer&) = delete;
  Peer& operator=(const Peer&) = delete;
  pid_t pid() const { return peer_; }

 protected:
  Peer() = default;
  void EndPeer();
  pid_t peer_ = -1;
};

// A stream socket: a message is two lengths and its bytes, an answer has the second length.
class RawSocketPeer final : public Peer {
 public:
  enum class Kind { kTcp, kUnix };  // kUnix with a send buffer of 1 MB
  // The peer finds the maximum of each message, or reads it only.
  RawSocketPeer(Kind kind, int core, bool finds_maximum = true);
  ~RawSocketPeer() override;

  // Sends the messages one after the other, then waits for all answers, of at most 1 MB each.
  void Send(std::span<const std::span<const std::byte>> messages, size_t answer_bytes = 8);

 private:
  int socket_ = -1;
};

// A word in shared memory behind a futex; both ends sleep until it is their turn.
class FutexPeer final : public Peer {
 public:
  explicit FutexPeer(int core);
  ~FutexPeer() override;
  void RoundTrip();

 private:
  struct Words;
  Words* const words_;
};

// The contract's messages as protobuf makes and reads them, over gRPC's blocking calls, with the allocator as it is.
class ProtobufPeer final : public Peer {
 public:
  explicit ProtobufPeer(int core);
  ~ProtobufPeer() override;
  // See RawSocketPeer::Send. Connects at the first call.
  void Send(std::span<const std::span<const std::byte>> messages);

 private:
  struct Stream;
  std::string address_;
  std::unique_ptr<Stream> stream_;
};

}  // namespace sortition::bench

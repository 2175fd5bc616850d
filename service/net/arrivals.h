// The bytes of messages that one connection has begun to send, and the calls that read them.
//
// gRPC holds a message until its last byte has come, and no call can refuse it before. The guard counts these bytes and
// the calls tell which of them read; together they bound what one client can have under way (ClientAccount): its
// connections wait for each other, and the calls of one that alone exceeds the bound are given up.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "service/client_accounts.h"

namespace sortition::server {

// Thread-safe; never blocks for long. Without a call that reads, a connection's bytes count for no client: gRPC holds
// no more of them than the window of each stream.
class Arrivals {
 public:
  static constexpr uint64_t kShortBytes = 256 << 10;

  Arrivals() = default;
  ~Arrivals() { Close(); }
  Arrivals(const Arrivals&) = delete;
  Arrivals& operator=(const Arrivals&) = delete;

  // The guard's. Sets the bytes of the messages that have begun and not ended. Gives up the reads if the client's are
  // too many. False if they are so again before those reads have ended: then the connection is ended.
  bool Set(uint64_t bytes);
  // False while other connections of the client come first. One with fewer bytes than kShortBytes never waits, so that
  // short messages pass the long ones.
  bool MayReceive(absl::Time now);
  // The connection is closed.
  void Close();

  // The calls'. Notes that a call of the client reads a message. Returns the read's number. The first of several reads
  // says whose the connection's bytes are.
  uint64_t BeginRead(const std::shared_ptr<service::ClientAccount>& account);
  // Called once for each.
  void EndRead(uint64_t read);
  // True if the call is to be refused with ClientAccount::GivenUp.
  bool IsGivenUp(uint64_t read) const { return read < given_up_before_.load(std::memory_order_relaxed); }

 private:
  void Count() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  absl::Mutex mutex_;
  std::shared_ptr<service::ClientAccount> account_ ABSL_GUARDED_BY(mutex_);  // while there are reads
  uint64_t bytes_ ABSL_GUARDED_BY(mutex_) = 0;                               // as the guard counts them
  uint64_t given_up_bytes_ ABSL_GUARDED_BY(mutex_) = 0;                      // the first of bytes_, which do not count
  uint64_t counted_ ABSL_GUARDED_BY(mutex_) = 0;                             // in the account
  uint64_t reads_ ABSL_GUARDED_BY(mutex_) = 0;                               // under way
  uint64_t given_up_reads_ ABSL_GUARDED_BY(mutex_) = 0;                      // of them
  uint64_t next_read_ ABSL_GUARDED_BY(mutex_) = 0;
  std::atomic<uint64_t> given_up_before_ = 0;  // reads with lower numbers are given up
};

}  // namespace sortition::server

// Accounts of each client's memory and rate of use, for the limits on one client. A client is an identity, the tenant
// that owns its sequences. The limits on all clients together are elsewhere.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "service/clock.h"
#include "service/limits.h"
#include "service/refusal.h"

namespace sortition::service {

// Thread-safe; never blocks for long. Refusals are CLIENT_LIMIT and name the limit.
class ClientAccount {
 public:
  static constexpr absl::Duration kTurn = absl::Milliseconds(200);

  // The streams, regions and bytes that the client holds now.
  struct Use {
    uint32_t streams = 0;
    uint32_t regions = 0;
    uint64_t memory_bytes = 0;
  };

  // `clock` is not owned and outlives the account.
  ClientAccount(std::string identity, const Limits& limits, const Clock* clock);

  const std::string& identity() const { return identity_; }

  // Each take that is not refused is given back once.
  std::optional<Refusal> TakeStream();
  void GiveBackStream();
  std::optional<Refusal> TakeRegion(uint64_t bytes, const std::string& field);
  void GiveBackRegion(uint64_t bytes);

  // False while the client's messages that are held or arrive exceed the bound. None of its streams is read meanwhile.
  bool HasRoomForMessage() const;
  // Holds the bytes of a message until GiveBackMessage.
  void HoldMessage(uint64_t bytes) { received_bytes_.fetch_add(bytes, std::memory_order_relaxed); }
  void GiveBackMessage(uint64_t bytes);
  // Returns the refusal of a unary call, whose message has come, while messages hold half of the bound: streams, which
  // wait until there is room, keep the other half.
  std::optional<Refusal> CheckRoomForCall() const;

  // Messages that arrive: gRPC holds what has come of them (service/net/arrivals.h).
  // Returns the most bytes of one, beyond which gRPC ends its call.
  uint64_t most_read_bytes() const { return 2 * limits_.max_message_bytes; }
  // Counts a connection's bytes for the former ones.
  void ChangeArriving(uint64_t former, uint64_t bytes) {
    arriving_bytes_.fetch_add(bytes - former, std::memory_order_relaxed);
  }
  // False while messages hold half of the bound and another connection has its turn to receive. A turn lasts kTurn, or
  // until nothing of the connection arrives.
  bool MayReceive(const void* connection, absl::Time now);
  void EndTurn(const void* connection);
  // False if more has come than may arrive: three quarters of the bound together with what is held, and in any case a
  // quarter and one message.
  bool HasRoomToArrive() const;
  // Returns the refusal of a call whose message is given up for that.
  Refusal GivenUp() const;

  // False while answers that the client has not read exceed the bound. None of its streams is read meanwhile.
  bool HasRoomForAnswer() const;
  // Holds the bytes of an answer until GiveBackAnswer.
  void HoldAnswer(uint64_t bytes) { answer_bytes_.fetch_add(bytes, std::memory_order_relaxed); }
  void GiveBackAnswer(uint64_t bytes);
  // Holds them, or refuses the answer if there is no room.
  std::optional<Refusal> TakeAnswer(uint64_t bytes);

  // Charges rows and bytes that have arrived. Refuses while earlier charges exceed the allowance of the rates since
  // then, plus one second's worth. A refused charge costs nothing, and the refusal advises when the next one will pass.
  // So one message may exceed a second's worth, and the average rate still holds.
  std::optional<Refusal> Charge(uint32_t rows, uint64_t bytes, const char* field);
  // Takes the work of a message, by the price list (service/text/cost.h), from the client's rate. What is beyond it is
  // owed: Charge refuses the client's next messages.
  void Spend(uint64_t work);

  Use use() const;
  // True if nothing is owed: a new account would allow no more than this one.
  bool settled() const;

 private:
  // The amount that may still pass. Grows by the rate, up to one second's worth; negative while something is owed.
  struct Allowance {
    uint64_t rate = 0;  // 0 = unbounded
    double left = 0;
    absl::Time at = absl::InfinitePast();
    void Refill(absl::Time now);
    absl::Duration UntilPositive() const;
  };

  const std::string identity_;
  const Limits limits_;
  const Clock& clock_;
  mutable absl::Mutex mutex_;
  Use use_ ABSL_GUARDED_BY(mutex_);
  std::atomic<uint64_t> received_bytes_ = 0;
  std::atomic<uint64_t> arriving_bytes_ = 0;
  const void* turn_ ABSL_GUARDED_BY(mutex_) = nullptr;  // of a connection to receive
  absl::Time turn_end_ ABSL_GUARDED_BY(mutex_);
  bool turn_is_awaited_ ABSL_GUARDED_BY(mutex_) = false;
  std::atomic<uint64_t> answer_bytes_ = 0;
  mutable Allowance rows_ ABSL_GUARDED_BY(mutex_);
  mutable Allowance bytes_ ABSL_GUARDED_BY(mutex_);
  mutable Allowance work_ ABSL_GUARDED_BY(mutex_);
};

// A stream of a client, given back at destruction.
class ClientStream {
 public:
  ClientStream() = default;
  explicit ClientStream(std::shared_ptr<ClientAccount> account) : account_(std::move(account)) {}
  ClientStream(ClientStream&& other) noexcept = default;
  ClientStream& operator=(ClientStream&& other) noexcept;
  ~ClientStream();

  const std::shared_ptr<ClientAccount>& account() const { return account_; }

 private:
  std::shared_ptr<ClientAccount> account_;
};

// Accounts of the clients that hold or owe something. Thread-safe.
class ClientAccounts {
 public:
  // `clock` is not owned and outlives the accounts, which may outlive this.
  ClientAccounts(const Limits& limits, const Clock* clock);

  // Returns the account of a client that has just connected. OVERLOADED if limits.max_clients have one.
  std::variant<std::shared_ptr<ClientAccount>, Refusal> Enter(const std::string& identity);
  // Enters the client and opens a stream of it.
  std::variant<ClientStream, Refusal> OpenStream(const std::string& identity);
  // Returns the account of a client that has entered. Makes a new one, even beyond the bound, for another client.
  std::shared_ptr<ClientAccount> Of(const std::string& identity);

  // Returns the accounts that are in use, ordered by identity.
  std::vector<std::shared_ptr<const ClientAccount>> all() const;

 private:
  std::shared_ptr<ClientAccount> FindOrAdd(const std::string& identity) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const Limits limits_;
  const Clock& clock_;
  mutable absl::Mutex mutex_;
  absl::flat_hash_map<std::string, std::shared_ptr<ClientAccount>> accounts_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace sortition::service

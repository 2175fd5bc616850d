// What each client has of the service at the moment, and how fast it uses it: the bounds on one client beside those on
// all of them together. A client is an identity, the tenant of its sequences.
#pragma once

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
  // What it has now.
  struct Use {
    uint32_t streams = 0;
    uint32_t regions = 0;
    uint64_t memory_bytes = 0;
  };

  // `clock` is not owned and outlives the account.
  ClientAccount(std::string identity, const Limits& limits, const Clock* clock);

  const std::string& identity() const { return identity_; }

  // Every take that is not refused is given back once.
  std::optional<Refusal> TakeStream();
  void GiveBackStream();
  std::optional<Refusal> TakeRegion(uint64_t bytes, const std::string& field);
  void GiveBackRegion(uint64_t bytes);

  // Rows and bytes that have arrived. Refused as long as what was charged before is more than the rates have let
  // through since, beyond one second's worth; then nothing is charged, and the advice is when this will be over. So one
  // message may be larger than a second's worth, and the average holds.
  std::optional<Refusal> Charge(uint32_t rows, uint64_t bytes, const char* field);

  Use use() const;
  // Nothing is owed: a new account would not be better off.
  bool settled() const;

 private:
  // What may still pass. Grows by the rate, up to one second's worth; below zero while something is owed.
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
  mutable Allowance rows_ ABSL_GUARDED_BY(mutex_);
  mutable Allowance bytes_ ABSL_GUARDED_BY(mutex_);
};

// A stream of a client, given back at destruction.
class ClientStream {
 public:
  ClientStream() = default;
  explicit ClientStream(std::shared_ptr<ClientAccount> account) : account_(std::move(account)) {}
  ClientStream(ClientStream&& other) noexcept = default;
  ClientStream& operator=(ClientStream&& other) noexcept;
  ~ClientStream();

 private:
  std::shared_ptr<ClientAccount> account_;
};

// Accounts of clients that have something, or owe something. Thread-safe.
class ClientAccounts {
 public:
  // `clock` is not owned and outlives the accounts, which may outlive this.
  ClientAccounts(const Limits& limits, const Clock* clock);

  // The account of a client that has just connected. OVERLOADED if as many clients as there may be have one.
  std::variant<std::shared_ptr<ClientAccount>, Refusal> Enter(const std::string& identity);
  // Enter, and a stream of it.
  std::variant<ClientStream, Refusal> OpenStream(const std::string& identity);
  // The same account, of a client that has entered; of another a new one, whatever the bound.
  std::shared_ptr<ClientAccount> Of(const std::string& identity);

  // Of those that anyone holds, ordered by identity.
  std::vector<std::shared_ptr<const ClientAccount>> all() const;

 private:
  std::shared_ptr<ClientAccount> FindOrAdd(const std::string& identity) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const Limits limits_;
  const Clock& clock_;
  mutable absl::Mutex mutex_;
  absl::flat_hash_map<std::string, std::shared_ptr<ClientAccount>> accounts_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace sortition::service

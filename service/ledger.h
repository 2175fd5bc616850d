// The server's ledger of work on streams' threads beyond usual steps: histories, and steps that are done in pieces. It
// bounds the rate of both, so that a replica that takes over another one's sequences still answers steps meanwhile.
#pragma once

#include <atomic>
#include <cstdint>
#include <optional>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/synchronization/mutex.h"
#include "service/clock.h"
#include "service/entropy.h"
#include "service/limits.h"
#include "service/refusal.h"

namespace sortition::service {

// Histories have a budget of tokens per second; a quarter of it while rows wait for a device. Each worker that has to
// wait is given its own time, so that workers which lost one replica do not return all at once. The times are places in
// one queue per stream: waiting tenants share the budget equally, and so do the streams of a tenant. So a stream with
// many lost sequences delays only itself. Thread-safe.
class Ledger {
 public:
  // Histories up to this many tokens are always admitted, so that new short requests do not wait behind replays.
  static constexpr uint32_t kShortHistory = 4096;

  // `clock` and `entropy` are not owned and outlive the ledger.
  Ledger(const Limits& limits, const Clock* clock, Entropy* entropy);

  // The stream and tenant that a history belongs to.
  struct Owner {
    uint64_t tenant = 0;  // a number that identifies the tenant
    uint64_t stream = 0;
  };

  // Asks to receive a history of `tokens` tokens, or of at least that many if `open_ended`; an open-ended one is never
  // treated as short. OVERLOADED with advice if it has to wait. The rest of an admitted history is always received.
  std::optional<Refusal> Admit(const Owner& owner, uint64_t tokens, bool open_ended);
  // Records that tokens have arrived which cost as much as `tokens` plain ones (RewriteTimes).
  void SpendHistory(uint64_t tokens, bool rows_wait);
  // Records that a history is complete.
  void Completed(uint64_t tokens);

  // Returns how long a worker should wait before it sends a history of `tokens` tokens; 0 = unknown length. Zero if
  // there is room now.
  absl::Duration Advice(const Owner& owner, uint64_t tokens);

  // Records the work of a message, by the price list (service/text/cost.h).
  void Add(uint64_t work) { work_.fetch_add(work, std::memory_order_relaxed); }
  // Returns the pause after a piece of this work before the message's next one: as long as the piece, and longer while
  // pieces of all streams together take more than half of a thread.
  absl::Duration PauseAfter(uint64_t work);
  // Returns all work that was recorded, in nanoseconds.
  uint64_t work() const { return work_.load(std::memory_order_relaxed); }

 private:
  absl::Duration Cost(uint64_t tokens) const;
  absl::Duration Reserve(const Owner& owner, uint64_t tokens) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Forgets streams that need not wait any more. Looks at all streams, so it is called rarely.
  void Prune(absl::Time now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  std::atomic<uint64_t> work_ = 0;
  const Bound rate_;
  const Clock& clock_;
  Entropy& entropy_;
  absl::Mutex mutex_;
  // By the tokens that have arrived, and by pieces of steps.
  absl::Time spent_until_ ABSL_GUARDED_BY(mutex_) = absl::InfinitePast();
  // By tenant: the time at which a stream's own share of the budget has paid for its granted waits.
  using Promises = absl::flat_hash_map<uint64_t, absl::Time>;
  absl::flat_hash_map<uint64_t, Promises> promised_until_ ABSL_GUARDED_BY(mutex_);
  absl::Time next_prune_ ABSL_GUARDED_BY(mutex_) = absl::InfinitePast();
  double usual_tokens_ ABSL_GUARDED_BY(mutex_) = 0;  // moving average of a history's length
};

}  // namespace sortition::service

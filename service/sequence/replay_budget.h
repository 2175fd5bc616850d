// How fast histories may come in, all streams together, so that a replica that takes over another one's sequences goes
// on answering steps meanwhile.
#pragma once

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

// A budget of tokens a second, a quarter of it while rows wait for a device. Workers that have to wait are each given a
// time of their own, so that those who lost one replica together do not come back together. The times are places in a
// queue of each stream's own: tenants that wait share the budget equally, and so do streams within theirs, so that
// one with many lost sequences makes itself wait and nobody else. Thread-safe.
class ReplayBudget {
 public:
  // Histories up to so many tokens are taken whatever the budget, so that new short requests do not wait behind
  // replays.
  static constexpr uint32_t kShortHistory = 4096;

  // `clock` and `entropy` are not owned and outlive the budget.
  ReplayBudget(const Limits& limits, const Clock* clock, Entropy* entropy);

  // Whose history it is.
  struct Owner {
    uint64_t tenant = 0;  // a number that stands for it
    uint64_t stream = 0;
  };

  // A history of `tokens` tokens begins to arrive, or, if it is `open_ended`, of at least so many: such a one may turn
  // out to be long, whatever they are. OVERLOADED with advice if it has to wait; what follows of an admitted one is
  // taken.
  std::optional<Refusal> Admit(const Owner& owner, uint64_t tokens, bool open_ended);
  // So many tokens have arrived.
  void Spend(uint64_t tokens, bool rows_wait);
  // A history is whole.
  void Completed(uint64_t tokens);

  // How long a worker that has to send a history of `tokens` should wait before it does; 0 = unknown length. Zero if
  // there is room now.
  absl::Duration Advice(const Owner& owner, uint64_t tokens);

 private:
  absl::Duration Cost(uint64_t tokens) const;
  absl::Duration Reserve(const Owner& owner, uint64_t tokens) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Forgets who need not wait any more. Now and then: it looks at all of them.
  void Prune(absl::Time now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const double tokens_per_second_;
  const Clock& clock_;
  Entropy& entropy_;
  absl::Mutex mutex_;
  absl::Time spent_until_ ABSL_GUARDED_BY(mutex_) = absl::InfinitePast();  // by what has arrived
  // When a stream's own share of the budget will have paid for what it was told to wait with; by tenant.
  using Promises = absl::flat_hash_map<uint64_t, absl::Time>;
  absl::flat_hash_map<uint64_t, Promises> promised_until_ ABSL_GUARDED_BY(mutex_);
  absl::Time next_prune_ ABSL_GUARDED_BY(mutex_) = absl::InfinitePast();
  double usual_tokens_ ABSL_GUARDED_BY(mutex_) = 0;  // of a history, lately
};

}  // namespace sortition::service

// The choice of the target to be tried next, and of the time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <random>

#include "absl/time/time.h"
#include "sortition/options.h"

namespace sortition::client {

// Targets are tried in turn. After a whole round has failed, the next one waits (Backoff), and the fallback may be used
// at once if there is one. Not thread-safe.
class TargetChoice {
 public:
  // `jitter_seed` determines the random part of the waits.
  TargetChoice(size_t targets, bool has_fallback, const Backoff& backoff, uint64_t jitter_seed);

  // Returns the target to start a stream to now, or none. The fallback is target number `targets`.
  std::optional<size_t> Next(absl::Time now, bool fallback_wanted) const;
  // Returns the time from which Next may return a target.
  absl::Time not_before() const { return not_before_; }

  // Reports the end of a stream, and moves to the next target. `useful`: the stream had answered something, or was
  // retired by its server. Streams of the fallback are not reported.
  void Ended(bool useful, absl::Time now);
  // Reports that a stream has answered: earlier failures are forgotten.
  void Useful() { failures_ = 0; }

  // True if a whole round has failed since a stream was last useful.
  bool exhausted() const { return failures_ >= targets_; }
  // True if a second round has failed, too. One failure alone is weak evidence: gRPC before 1.61 may confuse another
  // call's errno with a connection attempt's.
  bool hopeless() const { return failures_ >= 2 * targets_; }
  bool IsFallback(size_t target) const { return target == targets_; }

  // Returns a random wait after the `attempt`th failure, from 1.
  absl::Duration Wait(uint32_t attempt);

 private:
  const size_t targets_;
  const bool has_fallback_;
  const Backoff backoff_;
  std::mt19937_64 random_;
  size_t cursor_ = 0;
  size_t failures_ = 0;
  absl::Time not_before_ = absl::InfinitePast();
};

}  // namespace sortition::client

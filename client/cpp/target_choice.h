// Which target is tried next, and when.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <random>

#include "absl/time/time.h"
#include "client/cpp/options.h"

namespace sortition::client {

// Targets are tried in turn. When a whole round has failed, the next one waits (Backoff) and, if there is a fallback,
// the fallback may be used at once. Not thread-safe.
class TargetChoice {
 public:
  // `jitter_seed` decides the random part of the waits.
  TargetChoice(size_t targets, bool has_fallback, const Backoff& backoff, uint64_t jitter_seed);

  // The target to start a stream to now, or none. The fallback is target number `targets`.
  std::optional<size_t> Next(absl::Time now, bool fallback_wanted) const;
  // When Next may have a target that it does not have now.
  absl::Time not_before() const { return not_before_; }

  // A stream has ended: `useful` if it had answered something or was ended in good order. Says who is next. The
  // fallback's own streams are not reported.
  void Ended(bool useful, absl::Time now);
  // A stream has answered: failures before it are forgotten.
  void Useful() { failures_ = 0; }

  // A whole round has failed since a stream was last useful.
  bool exhausted() const { return failures_ >= targets_; }
  // So has a second one. One alone says little: gRPC before 1.61 may take another call's errno for that of a connection
  // that is on its way.
  bool hopeless() const { return failures_ >= 2 * targets_; }
  bool IsFallback(size_t target) const { return target == targets_; }

  // A random wait after the `attempt`th failure, from 1.
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

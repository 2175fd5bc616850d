// Goes round the targets, with jittered waits between rounds.
#include "client/cpp/target_choice.h"

#include <algorithm>

namespace sortition::client {

TargetChoice::TargetChoice(size_t targets, bool has_fallback, const Backoff& backoff, uint64_t jitter_seed)
    : targets_(targets), has_fallback_(has_fallback), backoff_(backoff), random_(jitter_seed) {}

std::optional<size_t> TargetChoice::Next(absl::Time now, bool fallback_wanted) const {
  if (has_fallback_ && fallback_wanted && exhausted()) return targets_;
  if (targets_ == 0 || now < not_before_) return std::nullopt;
  return cursor_;
}

void TargetChoice::Ended(bool useful, absl::Time now) {
  cursor_ = (cursor_ + 1) % targets_;
  failures_ = useful ? 0 : failures_ + 1;
  const bool round_over = failures_ > 0 && failures_ % targets_ == 0;
  not_before_ = round_over ? now + Wait(static_cast<uint32_t>(failures_ / targets_)) : now;
}

absl::Duration TargetChoice::Wait(uint32_t attempt) {
  const absl::Duration full =
      std::min(backoff_.max, backoff_.initial * static_cast<double>(1u << std::min(attempt - 1, 20u)));
  return full * std::uniform_real_distribution<double>(0.5, 1.0)(random_);
}

}  // namespace sortition::client

// A leaky bucket in units of time, and places in the queue behind it.
#include "service/ledger.h"

#include <algorithm>

namespace sortition::service {
namespace {

// Part of the budget that may be used at once.
constexpr absl::Duration kBurst = absl::Milliseconds(50);
// Longest advice. A worker that is refused again gets a better estimate.
constexpr absl::Duration kLongestWait = absl::Seconds(30);
constexpr absl::Duration kLongestPause = absl::Seconds(1);
constexpr double kCostWhileRowsWait = 4;
constexpr absl::Duration kPruneEvery = absl::Milliseconds(10);

}  // namespace

Ledger::Ledger(const Limits& limits, const Clock* clock, Entropy* entropy)
    : rate_(Bounds(limits).replay_tokens_per_second()), clock_(*clock), entropy_(*entropy) {}

absl::Duration Ledger::Cost(uint64_t tokens) const {
  return absl::Seconds(static_cast<double>(tokens) / static_cast<double>(rate_.value));
}

std::optional<Refusal> Ledger::Admit(const Owner& owner, uint64_t tokens, bool open_ended) {
  if (tokens <= kShortHistory && !open_ended) return std::nullopt;
  absl::MutexLock lock(&mutex_);
  if (spent_until_ <= clock_.Now() + kBurst) return std::nullopt;
  if (open_ended) tokens = std::max(tokens, static_cast<uint64_t>(usual_tokens_));
  return Refusal{Reason::kOverloaded, "open.history", rate_.Text(), "other histories come first",
                 Reserve(owner, tokens)};
}

void Ledger::SpendHistory(uint64_t tokens, bool rows_wait) {
  absl::MutexLock lock(&mutex_);
  spent_until_ = std::max(spent_until_, clock_.Now()) + Cost(tokens) * (rows_wait ? kCostWhileRowsWait : 1);
}

absl::Duration Ledger::PauseAfter(uint64_t work) {
  const absl::Duration piece = absl::Nanoseconds(work);
  absl::MutexLock lock(&mutex_);
  const absl::Time now = clock_.Now();
  spent_until_ = std::max(spent_until_, now) + piece * 2;
  return std::clamp(spent_until_ - now - kBurst, piece, std::max(piece, kLongestPause));
}

void Ledger::Completed(uint64_t tokens) {
  absl::MutexLock lock(&mutex_);
  usual_tokens_ += (static_cast<double>(tokens) - usual_tokens_) / 8;
}

absl::Duration Ledger::Advice(const Owner& owner, uint64_t tokens) {
  absl::MutexLock lock(&mutex_);
  if (tokens == 0) tokens = static_cast<uint64_t>(usual_tokens_);
  if (tokens <= kShortHistory) return absl::ZeroDuration();
  return Reserve(owner, tokens);
}

absl::Duration Ledger::Reserve(const Owner& owner, uint64_t tokens) {
  const absl::Time now = clock_.Now();
  if (now >= next_prune_) Prune(now);
  Promises& streams = promised_until_[owner.tenant];
  absl::Time& until = streams.try_emplace(owner.stream, now).first->second;
  const double sharers = static_cast<double>(promised_until_.size() * streams.size());
  until = std::max({until, spent_until_, now});
  const absl::Duration wait = until - now;
  until = std::min(until + Cost(tokens) * sharers, now + kLongestWait);
  if (wait <= kBurst) return absl::ZeroDuration();
  return wait * (1 + static_cast<double>(entropy_.Draw() >> 40) / (1 << 26));  // up to a quarter more
}

void Ledger::Prune(absl::Time now) {
  next_prune_ = now + kPruneEvery;
  for (auto& [tenant, streams] : promised_until_) {
    absl::erase_if(streams, [&](const auto& stream) { return stream.second <= now; });
  }
  absl::erase_if(promised_until_, [](const auto& entry) { return entry.second.empty(); });
}

}  // namespace sortition::service

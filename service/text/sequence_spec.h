// Parameters of a sequence, fixed when it opens: validated and compiled options, seed, vocabulary.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "kernels/row.h"
#include "service/text/history/history_hash.h"
#include "service/text/history_options.h"

namespace sortition::service {

// A number that is computed when it is first asked for. A copy computes it anew. Thread-safe.
class ComputedOnce {
 public:
  ComputedOnce() = default;
  ComputedOnce(const ComputedOnce&) {}
  ComputedOnce& operator=(const ComputedOnce&) {
    value_ = 0;
    return *this;
  }
  bool operator==(const ComputedOnce&) const { return true; }

  template <typename Compute>
  uint64_t Get(Compute compute) const {
    uint64_t value = value_.load(std::memory_order_relaxed);
    if (value == 0) value_.store(value = compute(), std::memory_order_relaxed);
    return value;
  }

 private:
  mutable std::atomic<uint64_t> value_ = 0;  // 0: unknown
};

// Immutable after creation; shared by the stream, the sequence's state and rows in flight. The options of the base hold
// outside of phases.
struct SequenceSpec : PhaseOptions {
  uint32_t law_version = 0;
  uint64_t seed = 0;  // a secret: never logged
  uint32_t choice_index = 0;
  uint32_t vocabulary = 0;
  uint32_t live_vocabulary = 0;

  HistoryOptions history;
  std::vector<uint32_t> stop_tokens;        // sorted, distinct
  std::vector<uint32_t> logprob_token_ids;  // distinct, in the requested order
  bool receipts = false;                    // every drawn token has a receipt
  ComputedOnce identity_digest;

  bool operator==(const SequenceSpec&) const = default;

  HistoryIdentity Identity() const {
    return {law_version,       seed,
            choice_index,      vocabulary,
            live_vocabulary,   repetition_penalty,
            frequency_penalty, presence_penalty,
            history.Words()};
  }
  // Returns the digest of Identity().
  uint64_t digest() const {
    return identity_digest.Get([this] { return HistoryDigest(Identity()); });
  }
  uint64_t bytes() const {
    return sizeof(*this) + PhaseOptions::bytes() +
           (stop_tokens.capacity() + logprob_token_ids.capacity()) * sizeof(uint32_t) + history.bytes();
  }

  // Returns true if any option looks at the history. If none does, the service keeps no state for the sequence.
  bool stateful() const { return penalises() || history.on(); }
  bool stops(uint32_t token) const { return std::ranges::binary_search(stop_tokens, token); }
  // Returns true if log probabilities of any distribution are requested.
  bool has_logprobs() const {
    return parameters.raw_logprob || parameters.processed_logprob || parameters.tempered_logprob;
  }
  // Returns the options that hold in a phase; the base's outside of phases.
  const PhaseOptions& Within(uint32_t phase) const {
    return phase == kNoPhase ? *this : history.phases[phase - 1].options;
  }
  // Returns true if `is` is true of the options of some part of the text.
  template <typename Predicate>
  bool AnyOptions(Predicate is) const {
    return is(static_cast<const PhaseOptions&>(*this)) ||
           std::ranges::any_of(history.phases, [&](const Phase& phase) { return is(phase.options); });
  }
  // Returns true if occurrences of tokens are counted.
  bool penalises() const {
    return AnyOptions([](const PhaseOptions& options) { return options.penalises(); });
  }
};

}  // namespace sortition::service

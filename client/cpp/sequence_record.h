// The client's record of one open sequence, shared by its handle and the steps in flight.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "client/cpp/history.h"
#include "kernels/row.h"
#include "sortition/options.h"
#include "sortition/v1/sampling.pb.h"

namespace sortition::client {

// True if some sampler has a state that follows from past probabilities, so that no history restores it.
inline bool KeepsSamplerState(const v1::SamplingParameters& parameters) {
  return parameters.has_mirostat() || parameters.has_adaptive_p();
}

struct SequenceRecord {
  // The sequence that this one was forked from, so that the service may share their common history.
  struct Origin {
    std::shared_ptr<SequenceRecord> parent;
    uint32_t position = 0;
  };

  explicit SequenceRecord(SequenceOptions sequence_options)
      : options(std::move(sequence_options)),
        history(options.start_position ? History(*options.start_position) : History(options.prompt)) {
    SetRowParameters(options);
    history.SetTurns(options.turns);
    history.SetRewinds(Rewinds(options.rewound));
    if (options.policy) TakePolicy(*options.policy);
  }

  const SequenceOptions options;
  // The options that hold: `options` as the policy of the service's operator has changed them.
  const SequenceOptions& in_force() const { return changed_options_ ? *changed_options_ : options; }
  // Takes the policy's effect, before the sequence's handle exists. Nothing changes these members later. If the options
  // state an effect, it is the effect at the text's first opening.
  void TakePolicy(const v1::PolicyEffect& effect);
  v1::PolicyEffect policy;  // empty without a policy
  // As the service compiles them, for compact rows. Absent if an option is refused: then rows travel whole.
  std::optional<kernels::RowParameters> row_parameters;
  bool states_own_sum = true;  // false if a temperature is dynamic or phases have other ones
  // True if the first token of a row as it was sent is its answer: greedy, with no other option that matters.
  bool takes_first = false;
  std::optional<Origin> origin;  // set before the record is used; gone once the service has it

  uint32_t live_vocabulary() const { return options.live_vocabulary_size.value_or(options.vocabulary_size); }
  absl::Status CheckToken(uint32_t token) const;
  absl::Status CheckNoStep() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);
  // Returns the history that a fork at `position` starts with.
  absl::StatusOr<History> ForkHistory(std::optional<uint32_t> position);
  // Returns the digest of the sequence's identity, with which the history hash starts.
  uint64_t Digest(uint64_t seed_in_force) const;

  absl::Mutex mutex;
  History history ABSL_GUARDED_BY(mutex);
  std::string checkpoint ABSL_GUARDED_BY(mutex);  // of the last result; empty if its samplers keep no state
  uint64_t seed ABSL_GUARDED_BY(mutex) = 0;
  bool stateful ABSL_GUARDED_BY(mutex) = false;
  uint64_t next_step_id ABSL_GUARDED_BY(mutex) = 1;
  bool in_flight ABSL_GUARDED_BY(mutex) = false;  // a step has been submitted and is not over

  // Learnt from the service's refusals of compact rows, and from those that were foreseen.
  struct RowHabit {
    bool states_sums = false;
    bool lists_all = false;   // a row that listed its first token alone was refused
    uint32_t whole_rows = 0;  // that go whole before the next compact one
    uint32_t refusals = 0;    // in a row, that a whole row had to follow

    // Takes a refusal. `lacks_sums`: the row had no sums, and they were asked for. True if the sums were missing so far
    // in the sequence, so that the next row in compact form has a new chance.
    bool Refuse(bool lacks_sums);
  };
  RowHabit habit ABSL_GUARDED_BY(mutex);

  // The last result of rows in shards, for ranks that lost theirs together with the server.
  std::unique_ptr<v1::BringAnswer> last_answer ABSL_GUARDED_BY(mutex);

  // The sequence's standing with the service. Used by StreamState alone, under its owner's lock.
  struct Standing {
    bool known = false;       // the service has accepted it once, so that its seed is fixed
    bool forked = false;      // a fork has been tried; it is then opened like any other
    uint64_t stream = 0;      // opened, or being opened, on this stream; 0 = on none
    uint64_t epoch = 0;       // of the last open
    bool unanswered = false;  // that open has no answer yet
    bool needs_history = false;
    bool bound = false;     // its samplers' state is in this process only
    bool closed = false;    // the handle is gone
    uint32_t attempts = 0;  // opens refused in a row
    absl::Time not_before = absl::InfinitePast();
  } standing;

 private:
  // Sets `row_parameters`, `states_own_sum` and `takes_first`.
  void SetRowParameters(const SequenceOptions& from);

  std::unique_ptr<const SequenceOptions> changed_options_;  // null if they are `options`
};

}  // namespace sortition::client

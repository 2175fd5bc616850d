// What the client keeps of one open sequence; shared by its handle and the steps in flight.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "client/cpp/history.h"
#include "sortition/v1/sampling.pb.h"

namespace sortition::client {

// What a sequence is; fixed when it opens. Ranges are the service's and are checked there.
struct SequenceOptions {
  std::string request_id;  // 1 to 128 bytes, unique among the open sequences of the client
  v1::SamplingParameters parameters;
  std::optional<uint64_t> seed;                  // absent: the service draws one; Sequence::seed() has it
  uint32_t choice_index = 0;                     // which of n parallel completions of one prompt
  uint32_t vocabulary_size = 0;                  // elements of a row
  std::optional<uint32_t> live_vocabulary_size;  // ids at or above are never drawn; absent: all are live
  std::string model;                             // for the server's logs
  std::vector<uint32_t> prompt;
  // Where the first drawn token stands, for a sequence without state whose prompt the caller does not want to hand
  // over; `prompt` is then empty. Refused if an option looks at history.
  std::optional<uint32_t> start_position;
  // With ClientOptions::shard, where a rank takes a text up in a new process: Sequence::turns() of the other ranks, if
  // it is not 0.
  uint32_t turns = 0;
};

// Whether some sampler has a state that follows from past probabilities, and so from no history.
inline bool KeepsSamplerState(const v1::SamplingParameters& parameters) {
  return parameters.has_mirostat() || parameters.has_adaptive_p();
}

struct SequenceRecord {
  // The sequence that this one was forked from, so that the service may share what they have in common.
  struct Origin {
    std::shared_ptr<SequenceRecord> parent;
    uint32_t position = 0;
  };

  explicit SequenceRecord(SequenceOptions sequence_options)
      : options(std::move(sequence_options)),
        history(options.start_position ? History(*options.start_position) : History(options.prompt)) {
    history.SetTurns(options.turns);
  }

  const SequenceOptions options;
  std::optional<Origin> origin;  // set before the record is used; gone once the service has it

  // What the history hash starts from, under the seed in force.
  uint64_t Digest(uint64_t seed_in_force) const;

  absl::Mutex mutex;
  History history ABSL_GUARDED_BY(mutex);
  std::string checkpoint ABSL_GUARDED_BY(mutex);  // of the last answer; empty if its samplers keep no state
  uint64_t seed ABSL_GUARDED_BY(mutex) = 0;
  bool stateful ABSL_GUARDED_BY(mutex) = false;
  uint64_t next_step_id ABSL_GUARDED_BY(mutex) = 1;
  bool in_flight ABSL_GUARDED_BY(mutex) = false;  // a step has been submitted and is not over

  // Of rows in slices: the last answer, for ranks that lost theirs together with the server.
  std::unique_ptr<v1::BringAnswer> last_answer ABSL_GUARDED_BY(mutex);

  // Where the sequence stands with the service. Used by StreamState alone, under its owner's lock.
  struct Standing {
    bool known = false;       // the service has accepted it once: its seed is fixed
    bool forked = false;      // a fork has been tried; from now on it is opened like any other
    uint64_t stream = 0;      // opened, or being opened, on this stream; 0 = on none
    uint64_t epoch = 0;       // of the last open
    bool unanswered = false;  // that open has no answer yet
    bool needs_history = false;
    bool bound = false;     // its samplers' state was left in this process
    bool closed = false;    // nobody wants it any more
    uint32_t attempts = 0;  // opens refused in a row
    absl::Time not_before = absl::InfinitePast();
  } standing;
};

}  // namespace sortition::client

// Steps that were sent before their logits were done: each waits, here and not with a device, for the word by which its
// worker says that they are.
//
// No queue of a device waits for another process: a worker that dies leaves its own step to its deadline, and nobody
// else's. A GPU cannot wake a thread of the host, so one thread looks at all words, as often as kPause while there are
// any.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "service/batch/batcher.h"
#include "service/clock.h"
#include "service/limits.h"
#include "service/memory/ready_word.h"
#include "service/observer.h"
#include "service/refusal.h"

namespace sortition::service {

// Thread-safe.
class UnreadySteps {
 public:
  // A word is looked at again after this long; at once for kSpin after a step has come or gone, when another is likely.
  static constexpr absl::Duration kPause = absl::Microseconds(20);
  static constexpr absl::Duration kSpin = absl::Microseconds(50);

  // `clock`, `observer` and `batcher` are not owned and outlive this.
  UnreadySteps(const Limits& limits, const Clock* clock, Observer* observer, Batcher* batcher);
  // Gives what is left to the batcher.
  ~UnreadySteps();

  // Takes the rows, and submits them to the batcher once the word is set or the step is cancelled; what the batcher
  // refuses then is delivered through `step`, as is DEADLINE_PASSED when the step's timeout, or Limits::ready_wait, has
  // passed. OVERLOADED, and nothing is taken, while Limits::max_unready_steps wait.
  std::optional<Refusal> Add(ReadyWord word, std::shared_ptr<PendingStep> step, std::vector<QueuedRow> rows);

  size_t count() const;

 private:
  struct Waiting {
    ReadyWord word;
    std::shared_ptr<PendingStep> step;
    std::vector<QueuedRow> rows;
    absl::Time since;
    absl::Time deadline;
  };

  void Run();
  // Takes those that wait no longer.
  std::vector<Waiting> Take(absl::Time now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Settle(Waiting waiting, absl::Time now);
  static void Refuse(const Waiting& waiting, const Refusal& refusal);

  const Limits limits_;
  const Clock& clock_;
  Observer& observer_;
  Batcher& batcher_;
  mutable absl::Mutex mutex_;
  bool stopped_ ABSL_GUARDED_BY(mutex_) = false;
  std::vector<Waiting> waiting_ ABSL_GUARDED_BY(mutex_);
  std::thread thread_ ABSL_GUARDED_BY(mutex_);  // since the first step came
};

}  // namespace sortition::service

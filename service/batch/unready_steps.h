// Steps that were sent before their logits exist. Each waits here until its worker sets the step's ready word
// (service/memory/ready_word.h).
//
// They do not wait in a device's queue: if a worker dies, only its own step waits until the deadline. A GPU cannot wake
// a thread of the host, so one thread polls all words, every kPause while there are any.
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
  // Pause between two looks at a word. The thread spins instead for kSpin after a step has come or gone, when another
  // is likely.
  static constexpr absl::Duration kPause = absl::Microseconds(20);
  static constexpr absl::Duration kSpin = absl::Microseconds(50);

  // `clock`, `observer` and `batcher` are not owned and outlive this.
  UnreadySteps(const Limits& limits, const Clock* clock, Observer* observer, Batcher* batcher);
  // Submits the waiting steps to the batcher, cancelled.
  ~UnreadySteps();

  // Takes the rows, and submits them to the batcher once the word is set or the step is cancelled. Delivers the
  // batcher's refusal through `step`, and DEADLINE_PASSED after the step's timeout or Limits::ready_wait. Returns
  // OVERLOADED, and takes nothing, while Limits::max_unready_steps wait.
  std::optional<Refusal> Add(SharedReadyWord word, std::shared_ptr<PendingStep> step, std::vector<QueuedRow> rows);

  size_t count() const;

 private:
  struct Waiting {
    SharedReadyWord word;
    std::shared_ptr<PendingStep> step;
    std::vector<QueuedRow> rows;
    absl::Time since;
    absl::Time deadline;
  };

  void Run();
  // Takes the steps that need not wait any longer.
  std::vector<Waiting> Take(absl::Time now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Settle(Waiting waiting);
  static void Refuse(const Waiting& waiting, const Refusal& refusal);

  const Limits limits_;
  const Clock& clock_;
  Observer& observer_;
  Batcher& batcher_;
  mutable absl::Mutex mutex_;
  bool stopped_ ABSL_GUARDED_BY(mutex_) = false;
  std::vector<Waiting> waiting_ ABSL_GUARDED_BY(mutex_);
  std::thread thread_ ABSL_GUARDED_BY(mutex_);  // started by the first step
};

}  // namespace sortition::service

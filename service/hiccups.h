// The control: a thread on each core that sleeps, and notes how late it wakes. It tells the stalls of the machine from
// those of the programs that run on it, which cannot see the difference themselves.
#pragma once

#include <sched.h>

#include <atomic>
#include <deque>
#include <functional>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

namespace sortition::service {

// A hiccup is a time in which a core of the machine let no thread run: the host had taken the processor away, or the
// process was stopped. Hiccups of several cores at once are one. Times are a SteadyClock's (clock.h). Thread-safe.
class Hiccups {
 public:
  static constexpr absl::Duration kShortest = absl::Milliseconds(1);
  // The last ones are kept, in 256 KB. That is ten minutes of 27 a second.
  static constexpr size_t kMostKept = 16384;

  // Adds a hiccup unless it is shorter than kShortest. Calls are in the order of ends, but for those of threads that
  // race.
  void Add(absl::Time begin, absl::Time end);

  // Returns how much of [begin, end] lies in hiccups that are kept. A step overlaps a hiccup if this is more than zero.
  absl::Duration Within(absl::Time begin, absl::Time end) const;

 private:
  struct Interval {
    absl::Time begin;
    absl::Time end;
  };

  mutable absl::Mutex mutex_;
  std::deque<Interval> kept_ ABSL_GUARDED_BY(mutex_);  // disjoint, in order
};

// Runs the control from construction to destruction. A wake-up costs 20 to 30 µs of a core on a virtual machine.
// Thread-safe.
class HiccupControl {
 public:
  // Told how late a thread woke, in two parts. `machine`: its timer was late, so the core let nothing run. `threads`:
  // it waited for other threads on the core, or for its quota of processor time.
  using Woken = std::function<void(absl::Duration machine, absl::Duration threads)>;

  // Starts a thread on each core that the calling thread may use. Each sleeps `period` again and again, so a hiccup is
  // found for certain if it is longer than `period` and kShortest together. `woken`, if given, is called by these
  // threads after each sleep, and does not block. The error says what the system denies.
  static absl::StatusOr<std::unique_ptr<HiccupControl>> Start(absl::Duration period, Woken woken);
  // Blocks for a period at most, unless the machine is late.
  ~HiccupControl();
  HiccupControl(const HiccupControl&) = delete;
  HiccupControl& operator=(const HiccupControl&) = delete;

  const Hiccups& hiccups() const { return hiccups_; }
  // Returns a time before which all hiccups have been added that began before it.
  absl::Time past() const;
  // Blocks until past() is after `time`: for a period at most, unless the machine is late.
  void AwaitPast(absl::Time time) const;

 private:
  HiccupControl(absl::Duration period, Woken woken) : period_(period), woken_(std::move(woken)) {}

  // Blocks until every thread is prepared.
  absl::Status StartThreads(const cpu_set_t& cores);
  // The life of the thread on a core, which has a place in due_.
  void Run(int core, size_t place);
  // Binds the calling thread to the core. Returns a descriptor of its schedstat, which the caller closes.
  static absl::StatusOr<int> Prepare(int core);
  absl::Time EarliestDue() const ABSL_SHARED_LOCKS_REQUIRED(mutex_);

  const absl::Duration period_;
  const Woken woken_;
  Hiccups hiccups_;
  std::atomic<bool> stop_ = false;
  mutable absl::Mutex mutex_;
  std::vector<absl::Time> due_ ABSL_GUARDED_BY(mutex_);  // the next wake-up of each thread
  size_t prepared_ ABSL_GUARDED_BY(mutex_) = 0;          // threads
  absl::Status failure_ ABSL_GUARDED_BY(mutex_);         // of one that could not be prepared
  std::vector<std::thread> threads_;
};

}  // namespace sortition::service

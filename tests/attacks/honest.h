// The company of an attack: honest streams, a prober of health, and a look at the server's memory.
#pragma once

#include <grpcpp/grpcpp.h>
#include <sys/types.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"

namespace sortition::attacks {

// Parts of a trial, which alternate.
enum class Phase : uint8_t { kBefore, kQuiet, kAttacked, kAfter };

// Times of answers in each phase. Thread-safe.
class Answers {
 public:
  // Notes an answer that came `latency` after its question.
  void Add(absl::Duration latency);
  // Begins or continues a phase. The first one is kBefore.
  void Begin(Phase phase);
  // Returns the number of answers in the phase, and the time that 99 % of them took at most.
  uint64_t count(Phase phase) const;
  absl::Duration Percentile99(Phase phase) const;
  // Returns the longest time without an answer in a phase.
  absl::Duration LongestSilence(Phase phase) const;

 private:
  struct Times {
    std::vector<absl::Duration> latencies;
    absl::Duration silence;
  };

  void NoteSilence() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  mutable absl::Mutex mutex_;
  Phase phase_ ABSL_GUARDED_BY(mutex_) = Phase::kBefore;
  std::array<Times, 4> times_ ABSL_GUARDED_BY(mutex_);
  absl::Time last_ ABSL_GUARDED_BY(mutex_) = absl::Now();
};

// A thread that asks again and again, a few milliseconds after each answer. Destruction ends it.
class Asker {
 public:
  // `ask` sends a question and waits for its answer; false if there is none.
  Asker(std::function<bool()> ask, absl::Duration pause, Answers* answers);
  ~Asker();
  // Ends the thread after the question under way.
  void Stop();
  bool failed() const { return failed_; }

 private:
  std::atomic<bool> stop_ = false;
  std::atomic<bool> failed_ = false;
  std::thread thread_;
};

// The size of a step: its rows, and the logits of each.
struct StepSize {
  uint32_t rows = 1;
  uint32_t vocabulary = 512;
};

// Returns a question that is one step, over a stream that opens with the first.
std::function<bool()> StepsOver(const std::shared_ptr<grpc::Channel>& channel, const StepSize& size = {});
// Returns a question that is a greeting and an opening, over a new connection each time.
std::function<bool()> NewcomersOver(const std::function<std::shared_ptr<grpc::Channel>()>& connect);
// Returns a question for the server's health.
std::function<bool()> HealthOver(const std::shared_ptr<grpc::Channel>& channel);

// Bytes of memory that a process has; 0 if it has ended.
uint64_t ResidentMemory(pid_t process);

}  // namespace sortition::attacks

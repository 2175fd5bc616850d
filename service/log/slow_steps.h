// The slowest steps of the last minutes and where their time went, for the status page.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "service/clock.h"
#include "service/event_log.h"
#include "service/hiccups.h"

namespace sortition::server {

// Parts of a step's time. Queue, device and answer are disjoint and add up to its latency.
struct StepParts {
  absl::Duration logits;  // before its latency: the wait for logits of a step that was sent early
  absl::Duration queue;   // rows waited for a device, and no device had any
  absl::Duration device;  // a device had some of its rows
  absl::Duration answer;  // the rest: decoding, compact rows, state, encoding, receipts
  absl::Duration wire;    // after its latency began: the worker had not read an older answer for this long
};

StepParts PartsOf(const service::NotedStep& step);

// Thread-safe. Holds at most kMinutes * kOfAMinute steps, some 30 KB.
class SlowSteps {
 public:
  static constexpr int64_t kMinutes = 10;
  static constexpr size_t kOfAMinute = 8;
  // Most steps that Json lists.
  static constexpr size_t kListed = 20;
  enum class Cause : uint8_t { kQueue, kDevice, kAnswer, kWire };
  static constexpr const char* kCauseNames[] = {"queue", "device", "answer", "wire"};

  // `slow` is for readers: Add takes any step. `clock` is the steps' clock, and of `hiccups`, which may be null. They
  // are not owned and outlive this.
  SlowSteps(absl::Duration slow, const service::Clock* clock, const service::Hiccups* hiccups)
      : slow_(slow), clock_(*clock), hiccups_(hiccups) {}

  // Counts the step by its cause, the largest part, and keeps it if it is among the slowest of its minute.
  void Add(const service::NotedStep& step);

  // Returns a JSON object for the page: "slow_seconds", "minutes", "counts" by cause, and "steps", slowest first. A
  // step's "machine" is how much of it lay in hiccups; null if there is no control.
  // Clients' names are escaped (json_text.h).
  std::string Json() const;

 private:
  struct Step {
    absl::Time ready;
    absl::Time answered;
    absl::Duration slowness;  // the order of steps
    Cause cause = Cause::kAnswer;
    StepParts parts;
    std::string worker_session;
    std::string devices;   // names, by commas
    std::string trace_id;  // empty if the worker does not trace the step
    uint64_t batch_id = 0;
    uint32_t rows = 0;
    uint32_t refused_rows = 0;
    uint64_t bytes = 0;
  };
  struct Minute {
    int64_t number = -1;  // since the clock's epoch
    std::array<uint64_t, std::size(kCauseNames)> counts = {};
    std::vector<Step> slowest = {};  // a heap with the fastest step first
  };

  static bool IsSlower(const Step& a, const Step& b) { return a.slowness > b.slowness; }
  static int64_t NumberOf(absl::Time time) { return absl::ToUnixSeconds(time) / 60; }

  const absl::Duration slow_;
  const service::Clock& clock_;
  const service::Hiccups* const hiccups_;
  mutable absl::Mutex mutex_;
  std::array<Minute, kMinutes> minutes_ ABSL_GUARDED_BY(mutex_);  // by number modulo kMinutes
};

}  // namespace sortition::server

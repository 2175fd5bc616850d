// Events of single devices, sequences and steps for the log. They are rare, or a worker asks for them. Metrics about
// all of them are observer.h.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

#include "absl/time/time.h"
#include "service/batch_runs.h"
#include "service/observer.h"
#include "service/route/health.h"

namespace sortition::service {

// Options of a step's rows, if all rows have the same.
struct TracedOptions {
  float temperature = 1;
  float top_p = 1;
  uint32_t top_k = 0;  // 0 = off
  bool operator==(const TracedOptions&) const = default;
};

// A step after its last row's answer, or after its refusal as a whole. Its worker traces it, or it was slow
// (Engine::Options::slow_step). Its times are the clock's.
struct NotedStep {
  bool traced = false;
  bool slow = false;
  std::string_view worker_session;
  std::string_view traceparent;
  std::string_view tracestate;
  uint64_t batch_id = 0;
  uint32_t rows = 0;
  uint32_t refused_rows = 0;
  std::string_view refused_for;  // the reason of a row that was refused; empty if none was
  uint64_t bytes = 0;            // of the message
  absl::Time arrived;
  absl::Time ready;  // its logits were complete; `arrived` unless it was sent early
  absl::Time answered;
  // Time for which the worker had not read an older answer of the stream when this step was answered.
  absl::Duration unread;
  std::span<const BatchRun> runs;  // by their ends
  uint32_t runs_left_out = 0;
  std::optional<TracedOptions> options;  // set if the step is traced

  absl::Duration latency() const { return answered - ready; }
};

struct OpenedSequence {
  std::string_view worker_session;
  std::string_view model;  // as the worker names it; may be empty
  uint32_t vocabulary = 0;
  bool stateful = false;
};

// Thread-safe; must not block for long. Texts are valid during the call alone; they come from a client, and each is
// within kMaxNameBytes (the trace state kMaxTraceStateBytes).
class EventLog {
 public:
  virtual ~EventLog() = default;
  virtual void StepNoted(const NotedStep& step) = 0;
  virtual void SequenceOpened(const OpenedSequence& sequence) = 0;
  // Called when a device has joined the pool or left it.
  virtual void DeviceChanged(const DeviceEvent& event) = 0;
  // Called when receipts can no longer be written, or again. `why` names the file.
  virtual void ReceiptsChanged(bool written, std::string_view why) = 0;
  // Called when a file that is followed has changed. `why` names the file and the mistake if it cannot be used, and is
  // empty otherwise.
  virtual void FileRead(FollowedFile file, std::string_view why) = 0;
};

// Logs nothing.
class NullEventLog : public EventLog {
 public:
  void StepNoted(const NotedStep&) override {}
  void SequenceOpened(const OpenedSequence&) override {}
  void DeviceChanged(const DeviceEvent&) override {}
  void ReceiptsChanged(bool, std::string_view) override {}
  void FileRead(FollowedFile, std::string_view) override {}
};

}  // namespace sortition::service

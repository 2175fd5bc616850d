// The service's events as lines of the structured log.
#pragma once

#include "service/event_log.h"
#include "service/server/log.h"

namespace sortition::server {

// Thread-safe.
class LoggedEvents : public service::EventLog {
 public:
  // `log` is not owned and outlives this.
  explicit LoggedEvents(Log* log) : log_(*log) {}

  // "step", at level info: the worker asked for it.
  void StepTraced(const service::TracedStep& step) override;
  // "sequence_opened", at level debug.
  void SequenceOpened(const service::OpenedSequence& sequence) override;
  // "device", at level info where it joins, error where it leaves; and "touched_sequence" for the sequences to which a
  // device that gave wrong answers may have given more, several a line, so that the log takes all of them at once.
  void DeviceChanged(const service::DeviceEvent& event) override;

 private:
  Log& log_;
};

}  // namespace sortition::server

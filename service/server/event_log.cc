// Which fields a line has.
#include "service/server/event_log.h"

namespace sortition::server {

void LogLines::StepTraced(const service::TracedStep& step) {
  log_.Write(LogLevel::kInfo, "step",
             {{"traceparent", step.traceparent},
              {"tracestate", step.tracestate},
              {"worker_session", step.worker_session},
              {"batch_id", step.batch_id},
              {"rows", step.rows},
              {"refused_rows", step.refused_rows},
              {"latency_seconds", absl::ToDoubleSeconds(step.latency)}});
}

void LogLines::SequenceOpened(const service::OpenedSequence& sequence) {
  log_.Write(LogLevel::kDebug, "sequence_opened",
             {{"worker_session", sequence.worker_session},
              {"model", sequence.model},
              {"vocabulary_size", sequence.vocabulary},
              {"stateful", sequence.stateful}});
}

void LogLines::DeviceChanged(const service::DeviceEvent& event) {
  const bool serves = event.state == service::DeviceState::kServing;
  log_.Write(serves ? LogLevel::kInfo : LogLevel::kError, "device",
             {{"device", event.device},
              {"state", service::DeviceStateName(event.state)},
              {"reason", event.reason},
              {"unchecked_rows", event.unchecked_rows},
              {"touched_sequences", event.touched.size()}});
  for (const std::string& request_id : event.touched) {
    log_.Write(LogLevel::kError, "touched_sequence", {{"device", event.device}, {"request_id", request_id}});
  }
}

}  // namespace sortition::server

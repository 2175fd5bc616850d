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

}  // namespace sortition::server

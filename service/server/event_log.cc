// Which fields a line has.
#include "service/server/event_log.h"

#include <algorithm>
#include <string>

#include "absl/strings/str_join.h"

namespace sortition::server {
namespace {

// So that the lines of one second hold all names, of two devices.
constexpr size_t kNamesInLine = 2 * service::DeviceEvent::kMostSequences / Log::kLinesPerSecond;

}  // namespace

void LoggedEvents::StepTraced(const service::TracedStep& step) {
  log_.Write(LogLevel::kInfo, "step",
             {{"traceparent", step.traceparent},
              {"tracestate", step.tracestate},
              {"worker_session", step.worker_session},
              {"batch_id", step.batch_id},
              {"rows", step.rows},
              {"refused_rows", step.refused_rows},
              {"latency_seconds", absl::ToDoubleSeconds(step.latency)}});
}

void LoggedEvents::SequenceOpened(const service::OpenedSequence& sequence) {
  log_.Write(LogLevel::kDebug, "sequence_opened",
             {{"worker_session", sequence.worker_session},
              {"model", sequence.model},
              {"vocabulary_size", sequence.vocabulary},
              {"stateful", sequence.stateful}});
}

void LoggedEvents::DeviceChanged(const service::DeviceEvent& event) {
  const bool serves = event.state == service::DeviceState::kServing;
  log_.Write(serves ? LogLevel::kInfo : LogLevel::kError, "device",
             {{"device", event.device},
              {"state", service::DeviceStateName(event.state)},
              {"reason", event.reason},
              {"unchecked_rows", event.unchecked_rows},
              {"touched_sequences", event.sequences.size()}});
  for (size_t first = 0; first < event.sequences.size(); first += kNamesInLine) {
    const size_t end = std::min(first + kNamesInLine, event.sequences.size());
    const std::string names =
        absl::StrJoin(event.sequences.begin() + ptrdiff_t(first), event.sequences.begin() + ptrdiff_t(end), " ");
    log_.Write(LogLevel::kError, "touched_sequence", {{"device", event.device}, {"request_ids", names}});
  }
}

}  // namespace sortition::server

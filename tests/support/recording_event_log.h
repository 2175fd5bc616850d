// An event log that keeps its events as text.
#pragma once

#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "service/event_log.h"

namespace sortition::testing {

// Thread-safe.
class RecordingEventLog : public service::NullEventLog {
 public:
  void StepNoted(const service::NotedStep& step) override {
    std::string text(step.worker_session);
    absl::StrAppend(&text, " ", step.batch_id, " rows=", step.rows, " refused=", step.refused_rows,
                    " latency=", absl::FormatDuration(step.latency()), " ");
    text.append(step.traceparent).append(" ").append(step.tracestate);
    absl::StrAppend(&text, " runs=", step.runs.size());
    if (!step.refused_for.empty()) text.append(" refused_for=").append(step.refused_for);
    if (step.options) {
      absl::StrAppend(&text, " temperature=", step.options->temperature, " top_p=", step.options->top_p,
                      " top_k=", step.options->top_k);
    }
    absl::MutexLock lock(&mutex_);
    steps_.push_back(std::move(text));
  }
  void SequenceOpened(const service::OpenedSequence& sequence) override {
    std::string text(sequence.worker_session);
    text.append(" model=").append(sequence.model);
    absl::StrAppend(&text, " vocabulary=", sequence.vocabulary, sequence.stateful ? " stateful" : "");
    absl::MutexLock lock(&mutex_);
    sequences_.push_back(std::move(text));
  }

  std::vector<std::string> steps() const {
    absl::MutexLock lock(&mutex_);
    return steps_;
  }
  std::vector<std::string> sequences() const {
    absl::MutexLock lock(&mutex_);
    return sequences_;
  }

 private:
  mutable absl::Mutex mutex_;
  std::vector<std::string> steps_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::string> sequences_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace sortition::testing

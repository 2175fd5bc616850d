// Parts of steps, minutes of slow ones, and their JSON.
#include "service/log/slow_steps.h"

#include <algorithm>
#include <iterator>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"
#include "service/limits.h"
#include "service/log/json_text.h"
#include "service/wire/trace.h"

namespace sortition::server {
namespace {

using Span = std::pair<absl::Time, absl::Time>;

// Returns the time within [first, last] that at least one span covers.
absl::Duration Covered(std::vector<Span> spans, absl::Time first, absl::Time last) {
  std::sort(spans.begin(), spans.end());
  absl::Duration covered;
  absl::Time until = first;
  for (const auto& [begin, end] : spans) {
    const absl::Time from = std::max(begin, until);
    const absl::Time to = std::min(end, last);
    if (to <= from) continue;
    covered += to - from;
    until = to;
  }
  return covered;
}

void AppendNumber(const char* name, double number, std::string* out) {
  absl::StrAppend(out, ",\"", name, "\":");
  AppendJsonNumber(number, out);
}

void AppendSeconds(const char* name, absl::Duration time, std::string* out) {
  AppendNumber(name, absl::ToDoubleSeconds(time), out);
}

}  // namespace

StepParts PartsOf(const service::NotedStep& step) {
  std::vector<Span> on_devices;
  std::vector<Span> with_queues;
  for (const service::BatchRun& run : step.runs) {
    on_devices.emplace_back(run.started, run.ended);
    with_queues.emplace_back(run.queued, run.ended);
  }
  StepParts parts;
  parts.logits = step.ready - step.arrived;
  parts.device = Covered(std::move(on_devices), step.ready, step.answered);
  parts.queue = Covered(std::move(with_queues), step.ready, step.answered) - parts.device;
  parts.answer = step.latency() - parts.device - parts.queue;
  parts.wire = step.unread;
  return parts;
}

void SlowSteps::Add(const service::NotedStep& noted) {
  Step step;
  step.ready = noted.ready;
  step.answered = noted.answered;
  step.parts = PartsOf(noted);
  step.slowness = std::max(noted.latency(), step.parts.wire);
  const absl::Duration by_cause[] = {step.parts.queue, step.parts.device, step.parts.answer, step.parts.wire};
  const auto largest = std::max_element(std::begin(by_cause), std::end(by_cause));
  step.cause = static_cast<Cause>(largest - std::begin(by_cause));
  const int64_t number = NumberOf(noted.answered);

  absl::MutexLock lock(&mutex_);
  Minute& minute = minutes_[static_cast<size_t>(number % kMinutes)];
  if (minute.number != number) minute = {.number = number};
  ++minute.counts[static_cast<size_t>(step.cause)];
  if (minute.slowest.size() == kOfAMinute) {
    if (!IsSlower(step, minute.slowest.front())) return;
    std::pop_heap(minute.slowest.begin(), minute.slowest.end(), IsSlower);
    minute.slowest.pop_back();
  }
  step.worker_session = noted.worker_session.substr(0, service::kMaxNameBytes);
  std::vector<std::string_view> devices;
  for (const service::BatchRun& run : noted.runs) {
    if (std::find(devices.begin(), devices.end(), run.device) != devices.end()) continue;
    if (!devices.empty()) step.devices.push_back(',');
    step.devices.append(run.device);
    devices.push_back(run.device);
  }
  if (noted.traced) step.trace_id = service::TraceIdOf(noted.traceparent);
  step.batch_id = noted.batch_id;
  step.rows = noted.rows;
  step.refused_rows = noted.refused_rows;
  step.bytes = noted.bytes;
  minute.slowest.push_back(std::move(step));
  std::push_heap(minute.slowest.begin(), minute.slowest.end(), IsSlower);
}

std::string SlowSteps::Json() const {
  const absl::Time now = clock_.Now();
  std::vector<Step> steps;
  std::array<uint64_t, std::size(kCauseNames)> counts = {};
  {
    absl::MutexLock lock(&mutex_);
    for (const Minute& minute : minutes_) {
      if (minute.number <= NumberOf(now) - kMinutes) continue;
      for (size_t i = 0; i < counts.size(); ++i) counts[i] += minute.counts[i];
      steps.insert(steps.end(), minute.slowest.begin(), minute.slowest.end());
    }
  }
  std::sort(steps.begin(), steps.end(), IsSlower);
  if (steps.size() > kListed) steps.resize(kListed);

  std::string out =
      absl::StrCat("{\"slow_seconds\":", absl::ToDoubleSeconds(slow_), ",\"minutes\":", kMinutes, ",\"counts\":{");
  for (size_t i = 0; i < counts.size(); ++i) {
    absl::StrAppend(&out, i == 0 ? "" : ",", "\"", kCauseNames[i], "\":", counts[i]);
  }
  out.append("},\"steps\":[");
  for (const Step& step : steps) {
    absl::StrAppend(&out, &step == steps.data() ? "" : ",", "{\"cause\":\"",
                    kCauseNames[static_cast<size_t>(step.cause)], "\",\"worker_session\":");
    AppendJsonText(step.worker_session, &out);
    out.append(",\"devices\":");
    AppendJsonText(step.devices, &out);
    out.append(",\"trace_id\":");
    AppendJsonText(step.trace_id, &out);
    // A number of JSON has 53 bits.
    absl::StrAppend(&out, ",\"batch_id\":\"", step.batch_id, "\"");
    AppendNumber("rows", step.rows, &out);
    AppendNumber("refused_rows", step.refused_rows, &out);
    AppendNumber("bytes", double(step.bytes), &out);
    AppendSeconds("ago", now - step.answered, &out);
    AppendSeconds("logits", step.parts.logits, &out);
    AppendSeconds("queue", step.parts.queue, &out);
    AppendSeconds("device", step.parts.device, &out);
    AppendSeconds("answer", step.parts.answer, &out);
    AppendSeconds("wire", step.parts.wire, &out);
    if (hiccups_ == nullptr) {
      out.append(",\"machine\":null");
    } else {
      // A hiccup may end after the step, so steps are judged when they are read.
      AppendSeconds("machine", hiccups_->Within(step.ready, step.answered), &out);
    }
    out.push_back('}');
  }
  out.append("]}\n");
  return out;
}

}  // namespace sortition::server

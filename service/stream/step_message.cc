// The one place that counts a step's answered rows.
#include "service/stream/step_message.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "kernels/check.h"
#include "service/result/encode.h"
#include "service/result/split_results.h"

namespace sortition::service {

StepMessage::StepMessage(Engine* engine, std::shared_ptr<StreamContext> stream, Frame frame, RegionPayloads region,
                         absl::Time arrived)
    : engine_(*engine),
      stream_(std::move(stream)),
      frame_(std::move(frame)),
      payloads_(std::move(frame_.payloads)),
      bytes_(frame_.bytes),
      arrived_(arrived),
      unanswered_(rows()) {
  for (Payload& payload : region) {
    // A copy is held as if it had come with the message.
    if (!payload.may_change) bytes_ += payload.size;
    payloads_.push_back(std::move(payload));
  }
}

void StepMessage::SetShape(StepShape shape) {
  shape_ = std::move(shape);
  if (shape_.logits_payload) logits_.emplace(payloads_[*shape_.logits_payload]);
  if (shape_.pairs_payload) pairs_.emplace(payloads_[*shape_.pairs_payload]);
  if (shape_.mask_payload) masks_.emplace(payloads_[*shape_.mask_payload]);
  if (shape_.draft_payload) drafts_.emplace(payloads_[*shape_.draft_payload]);
}

const Refusal* StepMessage::FindSetTwice(uint32_t index) const {
  for (const SetTwice& twice : frame_.set_twice) {
    if (twice.row == index) return &twice.refusal;
  }
  return nullptr;
}

void StepMessage::NoteOptions(const SequenceSpec& spec) {
  if (!shape_.traced) return;
  const TracedOptions options = {spec.temperature, spec.top_p, spec.top_k};
  options_differ_ = options_differ_ || (options_ && *options_ != options);
  options_ = options;
}

void StepMessage::Answer(v1::StepResults results) {
  results.set_batch_id(batch_id());
  for (v1::StepResults& message : SplitResults(std::move(results))) Send(std::move(message));
}

void StepMessage::Send(v1::StepResults results) {
  const uint32_t tokens = TokensDrawn(results);
  uint32_t refused = 0;
  for (const v1::RowResult& row : results.rows()) {
    if (!row.has_error()) continue;
    engine_.observer().Refused(static_cast<Reason>(row.error().reason()), 1);
    ++refused;
  }
  // The other shards of a row are answered with the same tokens, which count once.
  const bool is_counted = !shape_.shard || shape_.shard->index == 0;
  if (is_counted && tokens > 0) engine_.observer().TokensDrawn(tokens);
  if (shape_.traced && refused > 0) refused_.fetch_add(refused, std::memory_order_relaxed);
  const uint32_t rows = AnsweredRows(results);
  const uint32_t before = unanswered_.fetch_sub(rows);
  SORTITION_CHECK(before >= rows);
  const bool is_last = before == rows;
  if (is_last && is_counted) Finish();
  if (is_last) stream_->Unregister(batch_id());
  const SentRelease release{rows, is_last ? bytes_ : 0};
  if (stream_->closed()) return stream_->OnSent(release);  // the worker is gone
  v1::StreamResponse response;
  *response.mutable_results() = std::move(results);
  stream_->Send(std::move(response), release);
}

void StepMessage::Finish() {
  TracedStep traced;
  std::vector<BatchRun> runs;
  // A step that was sent before its logits were written has arrived when they are.
  traced.ready = arrived_;
  {
    absl::MutexLock lock(&mutex_);
    for (const auto& step : steps_) {
      const auto held = step.lock();
      if (held == nullptr) continue;
      traced.ready = std::max(traced.ready, held->arrived);
      if (shape_.traced) traced.runs_left_out += held->runs().AppendTo(&runs);
    }
  }
  traced.answered = engine_.clock().Now();
  engine_.observer().StepAnswered(traced.latency());
  if (!shape_.traced) return;
  const v1::TraceContext& trace = step().trace();
  traced.worker_session = stream_->worker_session;
  traced.traceparent = trace.traceparent();
  traced.tracestate = trace.tracestate();
  traced.batch_id = batch_id();
  traced.rows = rows();
  traced.refused_rows = refused_.load(std::memory_order_relaxed);
  traced.arrived = arrived_;
  traced.runs = runs;
  if (!options_differ_) traced.options = options_;
  engine_.event_log().StepTraced(traced);
}

void StepMessage::Refuse(const Refusal& refusal) {
  const uint32_t count = rows();
  engine_.observer().Refused(refusal.reason, std::max(count, 1u));
  v1::StreamResponse response;
  response.mutable_results()->set_batch_id(batch_id());
  EncodeError(refusal, response.mutable_results()->mutable_error());
  stream_->Send(std::move(response), SentRelease{count, bytes_});
}

void StepMessage::Attach(const std::shared_ptr<PendingStep>& step) {
  absl::MutexLock lock(&mutex_);
  if (cancelled_) step->Cancel();
  steps_.push_back(step);
}

void StepMessage::Cancel() {
  absl::MutexLock lock(&mutex_);
  cancelled_ = true;
  for (const auto& step : steps_) {
    if (const auto held = step.lock()) held->Cancel();
  }
}

void AddRefusal(uint32_t index, uint64_t step_id, const Refusal& refusal, v1::StepResults* results) {
  v1::RowResult* const result = results->add_rows();
  result->set_row(index);
  result->set_step_id(step_id);
  EncodeError(refusal, result->mutable_error());
}

}  // namespace sortition::service

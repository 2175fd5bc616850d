// The one place that counts a step's answered rows.
#include "service/stream/step_message.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/check.h"
#include "service/wire/encode.h"
#include "service/wire/strictness.h"
#include "service/wire/trace.h"

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
    shared_bytes_ += payload.size;
    payloads_.push_back(std::move(payload));
  }
}

StepMessage::~StepMessage() {
  if (frame_.message.GetArena() != nullptr) return;
  stream_->Reuse(std::unique_ptr<v1::Step>(frame_.message.release_step()), frame_.message_bytes, frame_.scan.parts);
}

void StepMessage::SetShape(StepShape shape) {
  shape_ = std::move(shape);
  if (shape_.logits_payload) logits_.emplace(payloads_[*shape_.logits_payload]);
  if (shape_.pairs_payload) pairs_.emplace(payloads_[*shape_.pairs_payload]);
  if (shape_.mask_payload) masks_.emplace(payloads_[*shape_.mask_payload]);
  if (shape_.draft_payload) drafts_.emplace(payloads_[*shape_.draft_payload]);
}

const std::byte* StepMessage::DraftRow(uint32_t row) const {
  const uint64_t stride = shape_.draft_stride;
  const auto segments = drafts_->Slice(row * stride, stride);
  if (segments.size() == 1 && !drafts_->may_change()) return segments[0].data;
  absl::MutexLock lock(&mutex_);
  std::vector<std::byte>& copy = copied_drafts_[row];
  if (copy.empty()) {
    copy.resize(stride);
    drafts_->Copy(row * stride, stride, copy.data());
  }
  return copy.data();
}

const Refusal* StepMessage::FindSetTwice(uint32_t index) const {
  const std::vector<SetTwice>& all = frame_.scan.set_twice;
  const auto twice = std::ranges::lower_bound(all, index, {}, [](const SetTwice& each) { return *each.row; });
  return twice != all.end() && twice->row == index ? &twice->refusal : nullptr;
}

std::optional<Refusal> StepMessage::FindUnknownInRow(uint32_t index) const {
  if (!frame_.scan.may_have_unknown) return std::nullopt;
  return FindUnknown(row(index), absl::StrCat("step.rows[", index, "]"));
}

void StepMessage::NoteOptions(const SequenceSpec& spec) {
  if (!shape_.traced) return;
  const TracedOptions options = {spec.temperature, spec.top_p, spec.top_k};
  options_differ_ = options_differ_ || (options_ && *options_ != options);
  options_ = options;
}

void StepMessage::ChargeLists(uint64_t bytes) {
  list_bytes_.fetch_add(bytes, std::memory_order_relaxed);
  stream_->window->Charge(0, bytes);
}

void StepMessage::Answer(StepAnswers answers) {
  Count(answers.notes());
  answers.SendTo(batch_id(), [this](v1::StepResults* results, uint32_t rows) { Send(results, rows); });
}

void StepMessage::Count(const std::vector<AnswerNote>& notes) {
  uint32_t tokens = 0;
  uint32_t refused = 0;
  std::array<uint32_t, kMaxPhases> in_phases = {};
  for (const AnswerNote& note : notes) {
    tokens += note.tokens;
    if (note.phase != kNoPhase) ++in_phases[note.phase - 1];
    if (!note.refused) continue;
    engine_.observer().Refused(*note.refused, note.field, 1);
    refused_for_.store(*note.refused, std::memory_order_relaxed);
    ++refused;
  }
  if (is_counted() && tokens > 0) engine_.observer().Count(Counter::kTokens, tokens);
  for (uint32_t i = 0; is_counted() && i < kMaxPhases; ++i) {
    if (in_phases[i] != 0) engine_.observer().PhaseTokens(i + 1, in_phases[i]);
  }
  if (refused > 0) refused_.fetch_add(refused, std::memory_order_relaxed);
}

void StepMessage::Send(v1::StepResults* results, uint32_t rows) {
  const uint32_t before = unanswered_.fetch_sub(rows);
  SORTITION_CHECK(before >= rows);
  const bool is_last = before == rows;
  if (is_last && is_counted()) Finish();
  if (is_last) stream_->Unregister(batch_id());
  Credit credit(stream_->window, rows, is_last ? bytes_ + list_bytes_ : 0);
  if (stream_->closed()) return;  // the worker is gone
  v1::StreamResponse response;
  response.unsafe_arena_set_allocated_results(results);  // lent, on an arena or not
  stream_->Send(response, std::move(credit));
  response.unsafe_arena_release_results();
}

void StepMessage::Finish() {
  NotedStep noted;
  // For a step sent before its logits were written, latency starts when its logits are complete.
  noted.ready = arrived_;
  absl::InlinedVector<std::shared_ptr<PendingStep>, 1> steps;
  {
    absl::MutexLock lock(&mutex_);
    for (const auto& step : steps_) {
      if (auto held = step.lock()) steps.push_back(std::move(held));
    }
  }
  for (const auto& step : steps) noted.ready = std::max(noted.ready, step->arrived);
  noted.answered = engine_.clock().Now();
  engine_.observer().StepAnswered(noted.latency());
  noted.traced = shape_.traced;
  if (engine_.slow_step() != absl::InfiniteDuration()) {
    noted.unread = std::max(noted.answered - stream_->waiting_since(), absl::ZeroDuration());
    noted.slow = std::max(noted.latency(), noted.unread) >= engine_.slow_step();
  }
  if (!noted.traced && !noted.slow) return;
  std::vector<BatchRun> runs;
  for (const auto& step : steps) noted.runs_left_out += step->runs().AppendTo(&runs);
  noted.runs = runs;
  noted.refused_rows = refused_.load(std::memory_order_relaxed);
  if (noted.refused_rows > 0) noted.refused_for = ReasonName(refused_for_.load(std::memory_order_relaxed));
  Note(noted);
}

void StepMessage::Note(NotedStep noted) {
  const v1::TraceContext& trace = step().trace();
  noted.worker_session = stream_->worker_session;
  if (noted.traced) noted.traceparent = trace.traceparent();
  if (noted.traced) noted.tracestate = trace.tracestate();
  noted.batch_id = batch_id();
  noted.rows = rows();
  noted.bytes = bytes_;
  noted.arrived = arrived_;
  if (!options_differ_) noted.options = options_;
  engine_.event_log().StepNoted(noted);
}

void StepMessage::Refuse(const Refusal& refusal) {
  const uint32_t count = rows();
  engine_.observer().Refused(refusal.reason, refusal.field, std::max(count, 1u));
  // The step may have been refused before its trace context was looked at.
  if (step().has_trace() && !CheckTrace(step().trace()) && IsSampled(step().trace())) {
    NotedStep noted;
    noted.traced = true;
    noted.ready = arrived_;
    noted.answered = engine_.clock().Now();
    noted.refused_rows = count;
    noted.refused_for = ReasonName(refusal.reason);
    Note(noted);
  }
  v1::StreamResponse response;
  response.mutable_results()->set_batch_id(batch_id());
  EncodeError(refusal, response.mutable_results()->mutable_error());
  stream_->Send(response, Credit(stream_->window, count, bytes_ + list_bytes_));
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

}  // namespace sortition::service

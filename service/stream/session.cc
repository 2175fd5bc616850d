// The stream protocol: dispatch of messages, bookkeeping of what is unanswered.
#include "service/stream/session.h"

#include <atomic>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "kernels/law/version.h"
#include "service/request/checks.h"
#include "service/request/open_request.h"
#include "service/request/payload_view.h"
#include "service/request/step_request.h"
#include "service/request/strictness.h"
#include "service/result/encode.h"
#include "service/sequence/history_hash.h"
#include "service/stream/partial_histories.h"
#include "service/stream/step_in_flight.h"
#include "service/version.h"

namespace sortition::service {
namespace {

uint64_t NextStreamId() {
  static std::atomic<uint64_t> next = 1;
  return next.fetch_add(1, std::memory_order_relaxed);
}

void SetDuration(absl::Duration duration, google::protobuf::Duration* out) {
  const int64_t nanoseconds = absl::ToInt64Nanoseconds(duration);
  out->set_seconds(nanoseconds / 1'000'000'000);
  out->set_nanos(static_cast<int32_t>(nanoseconds % 1'000'000'000));
}

}  // namespace

class Session::Impl : public StepAnswers, public std::enable_shared_from_this<Session::Impl> {
 public:
  Impl(Engine* engine, std::string name_space, std::shared_ptr<SessionSink> sink)
      : engine_(*engine),
        name_space_(std::move(name_space)),
        sink_(std::move(sink)),
        stream_id_(NextStreamId()),
        partial_histories_(engine->limits()) {}

  void OnFrame(Frame frame);
  void OnRejectedFrame(const Refusal& refusal);
  void OnSent(const SentRelease& release);
  bool WantsFrames() const;
  bool Idle() const;
  void Drain(v1::DrainingNotice::Cause cause, absl::Duration grace);
  void Close();

  void Answer(v1::StepResults results, const StepInFlight& step, bool last) override;
  bool Wanted() const override;

 private:
  // What any message must keep to before its kind is looked at.
  std::optional<Refusal> CheckFrame(const Frame& frame) const;
  std::optional<Refusal> OnHello(const v1::Hello& hello);
  std::optional<Refusal> OnOpen(const v1::OpenSequence& open);
  void OnStep(Frame frame);
  void OnCancel(const v1::CancelStep& cancel);
  std::optional<Refusal> OnClose(const v1::CloseSequence& close);

  std::variant<v1::OpenedState, Refusal> Open(const OpenRequest& request, const SequenceHistory* history);
  void AddStepRow(const v1::StepRow& row, int index, const StepShape& shape, const PayloadView& logits,
                  const std::optional<PayloadView>& masks, StepInFlight* step);

  void Send(v1::StreamResponse response, SentRelease release = {});
  void Refuse(const v1::StreamRequest& message, const Refusal& refusal);
  void RefuseStep(uint64_t batch_id, const Refusal& refusal, uint32_t rows, uint64_t bytes);
  std::optional<Refusal> RegisterStep(const std::shared_ptr<StepInFlight>& step);

  Engine& engine_;
  const std::string name_space_;
  const std::shared_ptr<SessionSink> sink_;
  const uint64_t stream_id_;

  // Touched by OnFrame's thread alone. The name of the worker session is set before the first step and then stays, so
  // that answers may read it.
  bool greeted_ = false;
  uint64_t messages_ = 0;
  std::string worker_session_;
  absl::flat_hash_map<std::string, StreamSequence> sequences_;
  PartialHistories partial_histories_;

  mutable absl::Mutex mutex_;
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;
  bool draining_ ABSL_GUARDED_BY(mutex_) = false;
  uint64_t unanswered_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t unanswered_rows_ ABSL_GUARDED_BY(mutex_) = 0;
  absl::flat_hash_map<uint64_t, std::weak_ptr<StepInFlight>> steps_ ABSL_GUARDED_BY(mutex_);  // by batch_id
};

void Session::Impl::OnRejectedFrame(const Refusal& refusal) {
  ++messages_;
  Refuse(v1::StreamRequest(), refusal);
}

void Session::Impl::OnFrame(Frame frame) {
  ++messages_;
  const v1::StreamRequest& message = frame.message;
  std::optional<Refusal> refusal = CheckFrame(frame);
  if (refusal) return Refuse(message, *refusal);
  switch (message.kind_case()) {
    case v1::StreamRequest::kHello:
      refusal = OnHello(message.hello());
      break;
    case v1::StreamRequest::kOpen:
      refusal = OnOpen(message.open());
      break;
    case v1::StreamRequest::kStep:
      return OnStep(std::move(frame));
    case v1::StreamRequest::kCancel:
      OnCancel(message.cancel());
      break;
    case v1::StreamRequest::kClose:
      refusal = OnClose(message.close());
      break;
    case v1::StreamRequest::kFork:
      refusal = NotImplemented("fork");
      break;
    case v1::StreamRequest::kUploadMask:
      refusal = NotImplemented("upload_mask");
      break;
    case v1::StreamRequest::kExportSequence:
      refusal = NotImplemented("export_sequence");
      break;
    case v1::StreamRequest::kImportSequence:
      refusal = NotImplemented("import_sequence");
      break;
    case v1::StreamRequest::KIND_NOT_SET:
      refusal = MissingField("kind");
      break;
  }
  if (refusal) Refuse(message, *refusal);
}

std::optional<Refusal> Session::Impl::CheckFrame(const Frame& frame) const {
  const uint64_t most = engine_.limits().max_message_bytes;
  if (frame.bytes > most) {
    return Refusal{Reason::kTooMany, "message", absl::StrCat("<= ", most, " bytes"),
                   absl::StrCat("has ", frame.bytes, " bytes")};
  }
  if (auto refusal = FindUnknown(frame.message, "")) return refusal;
  if (!frame.message.has_step() && !frame.payloads.empty()) {
    return Refusal{Reason::kContradiction, "payloads[0]", "", "nothing refers to this payload"};
  }
  if (!greeted_ && !frame.message.has_hello()) {
    return Refusal{Reason::kProtocolViolation, "kind", "hello", "the first message of a stream must be hello"};
  }
  return std::nullopt;
}

std::optional<Refusal> Session::Impl::OnHello(const v1::Hello& hello) {
  if (greeted_) return Refusal{Reason::kProtocolViolation, "hello", "", "a stream has one hello"};
  if (auto refusal = CheckName(hello.worker_session(), "hello.worker_session")) return refusal;
  if (auto refusal = CheckByteCount(hello.client().size(), kMaxNameBytes, "hello.client")) return refusal;
  greeted_ = true;
  worker_session_ = hello.worker_session();
  v1::StreamResponse response;
  v1::Welcome* welcome = response.mutable_welcome();
  welcome->set_server_version(std::string(Version()));
  welcome->add_law_versions(law::kLawVersion);
  const Limits& limits = engine_.limits();
  welcome->mutable_flow_window()->set_unanswered_bytes(limits.stream_unanswered_bytes);
  welcome->mutable_flow_window()->set_unanswered_rows(limits.stream_unanswered_rows);
  if (limits.max_stream_age > absl::ZeroDuration())
    SetDuration(limits.max_stream_age, welcome->mutable_max_stream_age());
  Send(std::move(response));
  return std::nullopt;
}

std::optional<Refusal> Session::Impl::OnOpen(const v1::OpenSequence& open) {
  auto parsed = ParseOpen(open, engine_.limits(), "open", &engine_.entropy());
  if (auto* refusal = std::get_if<Refusal>(&parsed)) return std::move(*refusal);
  OpenRequest& request = std::get<OpenRequest>(parsed);
  std::unique_ptr<SequenceHistory> history;
  if (request.history) {
    auto added = partial_histories_.Add(&request);
    if (auto* refusal = std::get_if<Refusal>(&added)) return std::move(*refusal);
    history = std::move(std::get<std::unique_ptr<SequenceHistory>>(added));
    if (history == nullptr) return std::nullopt;  // only the last piece is answered
  }
  auto outcome = Open(request, history.get());
  if (auto* refusal = std::get_if<Refusal>(&outcome)) return std::move(*refusal);
  v1::StreamResponse response;
  response.mutable_opened()->set_request_id(open.request_id());
  response.mutable_opened()->set_epoch(open.epoch());
  *response.mutable_opened()->mutable_state() = std::move(std::get<v1::OpenedState>(outcome));
  Send(std::move(response));
  return std::nullopt;
}

std::variant<v1::OpenedState, Refusal> Session::Impl::Open(const OpenRequest& request, const SequenceHistory* history) {
  if (!sequences_.contains(request.request_id)) {
    if (auto refusal = CheckCount(sequences_.size() + 1, engine_.limits().stream_sequences, "open")) {
      refusal->message = "close sequences that are done with";
      return *refusal;
    }
  }
  StreamSequence sequence{request.spec, {request.epoch, stream_id_}, nullptr, nullptr};
  v1::OpenedState opened;
  opened.set_seed(request.spec->seed);
  opened.set_stateful(request.spec->stateful());
  opened.set_history_hash(EmptyHistoryHash(*request.spec));
  if (request.spec->stateful()) {
    sequence.key = std::make_shared<const SequenceKey>(SequenceKey{name_space_, worker_session_, request.request_id});
    auto result = engine_.sequences().Open(*sequence.key, sequence.owner, request.spec, history);
    if (auto* refusal = std::get_if<Refusal>(&result)) return std::move(*refusal);
    SequenceTable::Opened& at = std::get<SequenceTable::Opened>(result);
    sequence.state = std::move(at.sequence);
    opened.set_position(at.at.position);
    opened.set_history_hash(at.at.history_hash);
    opened.set_last_step_id(at.at.last_step_id);
    if (history != nullptr && history->tokens.size() > history->prompt_length) {
      engine_.observer().HistoryReplayed(static_cast<uint32_t>(history->tokens.size()));
    }
  }
  sequences_[request.request_id] = std::move(sequence);
  engine_.observer().SequenceOpened();
  engine_.event_log().SequenceOpened(
      {worker_session_, request.model, request.spec->vocabulary, request.spec->stateful()});
  return opened;
}

void Session::Impl::OnStep(Frame frame) {
  const absl::Time now = engine_.clock().Now();
  const uint64_t batch_id = frame.message.step().batch_id();
  const uint32_t rows = static_cast<uint32_t>(frame.message.step().rows_size());
  const uint64_t bytes = frame.bytes;
  {
    absl::MutexLock lock(&mutex_);
    unanswered_rows_ += rows;
    unanswered_bytes_ += bytes;
  }
  uint64_t payload_bytes = 0;
  for (const Payload& payload : frame.payloads) payload_bytes += payload.size;
  engine_.observer().StepReceived(rows, payload_bytes);

  auto parsed = ParseStepShape(frame.message.step(), frame.payloads, engine_.limits());
  if (auto* refusal = std::get_if<Refusal>(&parsed)) return RefuseStep(batch_id, *refusal, rows, bytes);
  const StepShape& shape = std::get<StepShape>(parsed);

  auto step =
      std::make_shared<StepInFlight>(batch_id, rows, std::move(frame), &engine_.sequences(), shared_from_this());
  step->arrived = now;
  step->deadline = now + shape.timeout;
  step->priority = shape.priority;
  step->traced = shape.traced;
  if (auto refusal = RegisterStep(step)) return RefuseStep(batch_id, *refusal, rows, bytes);

  const v1::Step& message = step->frame().message.step();
  const PayloadView logits(step->frame().payloads[shape.logits_payload]);
  std::optional<PayloadView> masks;
  if (shape.mask_payload) masks.emplace(step->frame().payloads[*shape.mask_payload]);
  absl::flat_hash_map<absl::string_view, int> uses;
  for (const v1::StepRow& row : message.rows()) ++uses[row.request_id()];
  for (int i = 0; i < message.rows_size(); ++i) {
    const v1::StepRow& row = message.rows(i);
    if (uses[row.request_id()] > 1) {
      step->RefuseNow(i, row.step_id(),
                      Refusal{Reason::kDuplicateRow, absl::StrCat("step.rows[", i, "].request_id"), "1 row",
                              "the step has several rows for this sequence; none of them is served"});
      continue;
    }
    AddStepRow(row, i, shape, logits, masks, step.get());
  }
  std::vector<QueuedRow> queued = step->TakeRows();
  if (!queued.empty()) {
    if (auto refusal = engine_.batcher().Submit(step, std::move(queued))) {
      step->AbortRows();
      {
        absl::MutexLock lock(&mutex_);
        steps_.erase(batch_id);
      }
      return RefuseStep(batch_id, *refusal, rows, bytes);
    }
  }
  step->SendImmediate();
}

std::optional<Refusal> Session::Impl::RegisterStep(const std::shared_ptr<StepInFlight>& step) {
  absl::MutexLock lock(&mutex_);
  if (draining_) {
    return Refusal{Reason::kDraining, "step", "", "this stream is draining; open another one", absl::Milliseconds(10)};
  }
  if (!steps_.try_emplace(step->batch_id(), step).second) {
    return Refusal{Reason::kContradiction, "step.batch_id", "", "a batch of this id has not been answered yet"};
  }
  return std::nullopt;
}

void Session::Impl::AddStepRow(const v1::StepRow& row, int index, const StepShape& shape, const PayloadView& logits,
                               const std::optional<PayloadView>& masks, StepInFlight* step) {
  const auto it = sequences_.find(row.request_id());
  if (it == sequences_.end()) {
    return step->RefuseNow(index, row.step_id(),
                           Refusal{Reason::kUnknownSequence, absl::StrCat("step.rows[", index, "].request_id"), "",
                                   "this stream has not opened the sequence"});
  }
  const StreamSequence& sequence = it->second;
  auto parsed = ParseStepRow(row, index, shape, *sequence.spec, engine_.limits());
  if (auto* refusal = std::get_if<Refusal>(&parsed)) return step->RefuseNow(index, row.step_id(), *refusal);
  StepRowRequest& request = std::get<StepRowRequest>(parsed);
  std::vector<uint32_t> mask_words;
  if (request.mask_row) {
    mask_words.resize(shape.mask_stride / sizeof(uint32_t));
    masks->Copy(*request.mask_row * shape.mask_stride, shape.mask_stride, mask_words.data());
    request.intent.options_digest = absl::HashOf(request.intent.options_digest, mask_words);
  }
  std::optional<StepGrant> grant;
  if (sequence.state) {
    auto begun = sequence.state->Begin(sequence.owner, request.intent);
    if (auto* refusal = std::get_if<Refusal>(&begun)) {
      if (!refusal->field.empty()) refusal->field = absl::StrCat("step.rows[", index, "].", refusal->field);
      return step->RefuseNow(index, row.step_id(), *refusal);
    }
    if (auto* answer = std::get_if<StepAnswer>(&begun)) return step->AnswerNow(index, row.step_id(), sequence, *answer);
    grant = std::move(std::get<StepGrant>(begun));
  }
  step->AddRow(index, row.request_id(), sequence, std::move(request), std::move(grant), std::move(mask_words), shape,
               logits);
}

void Session::Impl::OnCancel(const v1::CancelStep& cancel) {
  std::shared_ptr<StepInFlight> step;
  {
    absl::MutexLock lock(&mutex_);
    const auto it = steps_.find(cancel.batch_id());
    if (it != steps_.end()) step = it->second.lock();
  }
  if (step == nullptr) return;  // answered already: the answer and the cancel crossed
  step->Cancel();
  engine_.batcher().Sweep();
}

std::optional<Refusal> Session::Impl::OnClose(const v1::CloseSequence& close) {
  if (auto refusal = CheckName(close.request_id(), "close.request_id")) return refusal;
  partial_histories_.Drop(close.request_id());
  const auto it = sequences_.find(close.request_id());
  if (it != sequences_.end() && it->second.owner.epoch == close.epoch()) {
    if (it->second.key) engine_.sequences().Close(*it->second.key, it->second.owner);
    sequences_.erase(it);
  }
  v1::StreamResponse response;
  response.mutable_closed()->set_request_id(close.request_id());
  Send(std::move(response));
  return std::nullopt;
}

void Session::Impl::Answer(v1::StepResults results, const StepInFlight& step, bool last) {
  uint32_t tokens = 0;
  for (const v1::RowResult& row : results.rows()) {
    if (row.has_draw()) ++tokens;
    if (row.has_error()) engine_.observer().Refused(static_cast<Reason>(row.error().reason()), 1);
  }
  if (tokens > 0) engine_.observer().TokensDrawn(tokens);
  if (last) {
    const absl::Duration latency = engine_.clock().Now() - step.arrived;
    engine_.observer().StepAnswered(latency);
    if (step.traced) {
      const v1::TraceContext& trace = step.frame().message.step().trace();
      engine_.event_log().StepTraced({worker_session_, trace.traceparent(), trace.tracestate(), step.batch_id(),
                                      step.rows(), step.refused_rows(), latency});
    }
    absl::MutexLock lock(&mutex_);
    steps_.erase(step.batch_id());
  }
  const SentRelease release{static_cast<uint32_t>(results.rows_size()), last ? step.frame_bytes() : 0};
  v1::StreamResponse response;
  *response.mutable_results() = std::move(results);
  Send(std::move(response), release);
}

void Session::Impl::Refuse(const v1::StreamRequest& message, const Refusal& refusal) {
  if (message.has_step()) return RefuseStep(message.step().batch_id(), refusal, 0, 0);
  engine_.observer().Refused(refusal.reason, 1);
  Send(EncodeRefused(message, messages_, refusal));
}

void Session::Impl::RefuseStep(uint64_t batch_id, const Refusal& refusal, uint32_t rows, uint64_t bytes) {
  engine_.observer().Refused(refusal.reason, std::max(rows, 1u));
  v1::StreamResponse response;
  response.mutable_results()->set_batch_id(batch_id);
  EncodeError(refusal, response.mutable_results()->mutable_error());
  Send(std::move(response), SentRelease{rows, bytes});
}

void Session::Impl::Send(v1::StreamResponse response, SentRelease release) {
  sink_->Send(std::move(response), release);
}

void Session::Impl::OnSent(const SentRelease& release) {
  absl::MutexLock lock(&mutex_);
  unanswered_rows_ -= release.rows;
  unanswered_bytes_ -= release.bytes;
}

bool Session::Impl::WantsFrames() const {
  absl::MutexLock lock(&mutex_);
  return unanswered_rows_ < engine_.limits().stream_unanswered_rows &&
         unanswered_bytes_ < engine_.limits().stream_unanswered_bytes;
}

bool Session::Impl::Idle() const {
  absl::MutexLock lock(&mutex_);
  return unanswered_rows_ == 0 && unanswered_bytes_ == 0;
}

bool Session::Impl::Wanted() const {
  absl::MutexLock lock(&mutex_);
  return !closed_;
}

void Session::Impl::Drain(v1::DrainingNotice::Cause cause, absl::Duration grace) {
  {
    absl::MutexLock lock(&mutex_);
    if (draining_) return;
    draining_ = true;
  }
  v1::StreamResponse response;
  response.mutable_draining()->set_cause(cause);
  SetDuration(grace, response.mutable_draining()->mutable_grace());
  Send(std::move(response));
}

void Session::Impl::Close() {
  std::vector<std::shared_ptr<StepInFlight>> steps;
  {
    absl::MutexLock lock(&mutex_);
    if (closed_) return;
    closed_ = true;
    for (auto& [batch_id, step] : steps_) {
      if (auto held = step.lock()) steps.push_back(std::move(held));
    }
  }
  for (auto& step : steps) step->Cancel();
  if (!steps.empty()) engine_.batcher().Sweep();
}

Session::Session(Engine* engine, std::string name_space, std::shared_ptr<SessionSink> sink)
    : impl_(std::make_shared<Impl>(engine, std::move(name_space), std::move(sink))) {}
Session::~Session() { impl_->Close(); }
void Session::OnFrame(Frame frame) { impl_->OnFrame(std::move(frame)); }
void Session::OnRejectedFrame(const Refusal& refusal) { impl_->OnRejectedFrame(refusal); }
void Session::OnSent(const SentRelease& release) { impl_->OnSent(release); }
bool Session::WantsFrames() const { return impl_->WantsFrames(); }
bool Session::Idle() const { return impl_->Idle(); }
void Session::Drain(v1::DrainingNotice::Cause cause, absl::Duration grace) { impl_->Drain(cause, grace); }
void Session::Close() { impl_->Close(); }

}  // namespace sortition::service

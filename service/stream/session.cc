// The life of a session, and the dispatch of its messages.
#include "service/stream/session.h"

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/law/version.h"
#include "service/checks.h"
#include "service/stream/step_message.h"
#include "service/text/cost.h"
#include "service/version.h"
#include "service/wire/encode.h"
#include "service/wire/region_payloads.h"
#include "service/wire/stream_request.h"

namespace sortition::service {
namespace {

void SetDuration(absl::Duration duration, google::protobuf::Duration* out) {
  const int64_t nanoseconds = absl::ToInt64Nanoseconds(duration);
  out->set_seconds(nanoseconds / 1'000'000'000);
  out->set_nanos(static_cast<int32_t>(nanoseconds % 1'000'000'000));
}

// Returns the field of this name. Protobuf 36 has its own accessor of the name, and calls the field's otherwise.
template <typename Hello>
v1::UnknownFields UnknownFieldsOf(const Hello& hello) {
  if constexpr (requires { hello.unknown_fields_(); }) {
    return hello.unknown_fields_();
  } else {
    return hello.unknown_fields();
  }
}

}  // namespace

Session::Session(Engine* engine, std::string tenant, std::shared_ptr<SessionSink> sink)
    : engine_(*engine),
      stream_(std::make_shared<StreamContext>(engine->limits(), std::move(tenant), std::move(sink))),
      account_(engine->clients().Of(stream_->tenant)),
      sequences_(engine, stream_, account_.get()),
      masks_(engine->limits(), &engine->masks()),
      shards_(engine, stream_, account_.get()),
      steps_(engine, stream_, account_.get(), &sequences_, &masks_, &shards_) {}

void Session::OnFrame(Frame frame) {
  BeginFrame(std::move(frame));
  while (back_off() > absl::ZeroDuration()) Continue();
}

void Session::OnRejectedFrame(const Refusal& refusal) {
  ++messages_;
  Refuse(v1::StreamRequest(), refusal);
}

void Session::BeginFrame(Frame frame, Submitter thread) {
  ++messages_;
  const v1::StreamRequest& message = frame.message;
  DropIgnored(&frame);
  std::optional<Refusal> refusal = CheckFrame(frame, engine_.limits());
  if (!refusal && !greeted_ && !message.has_hello()) {
    refusal = Refusal{Reason::kProtocolViolation, "kind", "hello", "the first message of a stream must be hello"};
  }
  // An answer with this batch id would be ambiguous: another batch still has it.
  if (message.has_step() && stream_->IsUnanswered(message.step().batch_id())) {
    if (!refusal) {
      refusal = Refusal{Reason::kContradiction, "step.batch_id", "", "a batch of this id has not been answered yet"};
    }
    return Refuse(v1::StreamRequest(), *refusal);
  }
  if (refusal) return Refuse(message, *refusal);
  switch (message.kind_case()) {
    case v1::StreamRequest::kHello:
      refusal = OnHello(message.hello());
      break;
    case v1::StreamRequest::kOpen:
    case v1::StreamRequest::kFork:
    case v1::StreamRequest::kBringAnswer:
      if (!stream_->PauseAfterReading(frame)) return TakeRead(std::move(frame));
      read_.emplace(std::move(frame));
      return;
    case v1::StreamRequest::kStep:
      return steps_.OnStep(std::move(frame), memory_.get(), thread);
    case v1::StreamRequest::kCancel:
      OnCancel(message.cancel());
      break;
    case v1::StreamRequest::kClose:
      refusal = sequences_.OnClose(message.close());
      break;
    case v1::StreamRequest::kUploadMask:
      refusal = OnUploadMask(message.upload_mask(), std::move(frame.payloads), frame.bytes);
      break;
    case v1::StreamRequest::kAttachMemory:
      refusal = OnAttachMemory(message.attach_memory());
      break;
    case v1::StreamRequest::KIND_NOT_SET:
      refusal = MissingField("kind");
      break;
  }
  if (refusal) Refuse(message, *refusal);
}

void Session::TakeRead(Frame frame) {
  v1::StreamRequest& message = frame.message;
  const auto refusal = message.has_open()   ? sequences_.OnOpen(&frame)
                       : message.has_fork() ? sequences_.OnFork(&frame)
                                            : OnBringAnswer(message.bring_answer(), frame.bytes);
  if (refusal) return Refuse(message, *refusal);
  if (!sequences_.has_pieces()) return;
  if (stream_->pause == absl::ZeroDuration()) Continue();
}

void Session::Continue() {
  stream_->pause = absl::ZeroDuration();
  if (read_) {
    Frame frame = *std::move(read_);
    read_.reset();
    return TakeRead(std::move(frame));
  }
  if (steps_.has_pieces()) return steps_.TakePiece();
  if (shards_.has_pieces()) return shards_.TakePiece();
  if (!sequences_.has_pieces()) return;
  if (const auto refused = sequences_.TakePiece()) Refuse(refused->message, refused->refusal);
}

// The welcome has the fields of the hello, every other message a notice before its answer.
void Session::DropIgnored(Frame* frame) {
  if (!greeted_) {
    const bool ignores = UnknownFieldsOf(frame->message.hello()) == v1::UNKNOWN_FIELDS_IGNORE;
    ignored_fields_ = ignores ? std::make_optional<IgnoredFields>() : std::nullopt;
  }
  if (!ignored_fields_ || !frame->scan.may_have_unknown) return;
  std::vector<std::string> fields = ignored_fields_->Drop(&frame->message);
  if (!greeted_) {
    ignored_in_hello_ = std::move(fields);
  } else if (!fields.empty()) {
    v1::StreamResponse response;
    response.mutable_ignored_fields()->mutable_fields()->Assign(fields.begin(), fields.end());
    stream_->Send(response);
  }
}

std::optional<Refusal> Session::OnHello(const v1::Hello& hello) {
  if (greeted_) return Refusal{Reason::kProtocolViolation, "hello", "", "a stream has one hello"};
  if (auto refusal = CheckHello(hello)) return refusal;
  greeted_ = true;
  stream_->worker_session = hello.worker_session();
  v1::StreamResponse response;
  v1::Welcome* welcome = response.mutable_welcome();
  welcome->set_server_version(std::string(Version()));
  welcome->add_law_versions(law::kLawVersion);
  const Limits& limits = engine_.limits();
  welcome->mutable_flow_window()->set_unanswered_bytes(limits.stream_unanswered_bytes);
  welcome->mutable_flow_window()->set_unanswered_rows(limits.stream_unanswered_rows);
  if (limits.max_stream_age > absl::ZeroDuration())
    SetDuration(limits.max_stream_age, welcome->mutable_max_stream_age());
  welcome->set_memory_address(engine_.regions().address());
  welcome->set_max_message_bytes(limits.max_message_bytes);
  welcome->set_ready_words(true);
  welcome->set_max_compact_tokens(limits.max_compact_tokens);
  welcome->set_max_compact_bytes(limits.max_compact_bytes);
  welcome->set_server_instance(engine_.regions().instance());
  welcome->mutable_ignored_fields()->Assign(ignored_in_hello_.begin(), ignored_in_hello_.end());
  stream_->Send(response);
  return std::nullopt;
}

std::optional<Refusal> Session::OnAttachMemory(const v1::AttachMemory& attach) {
  memory_ = engine_.regions().Find(attach.token());
  if (memory_ != nullptr) return std::nullopt;
  return Refusal{Reason::kUnknownRegion, "attach_memory.token", "",
                 "no connection to the memory socket has this token"};
}

std::optional<Refusal> Session::OnUploadMask(const v1::UploadMask& upload, std::vector<Payload> payloads,
                                             uint64_t bytes) {
  auto found = FindRegionPayloads(upload, memory_.get());
  if (auto* refusal = std::get_if<Refusal>(&found)) return std::move(*refusal);
  uint64_t shared_bytes = 0;
  for (Payload& payload : std::get<RegionPayloads>(found)) {
    shared_bytes += payload.size;
    payloads.push_back(std::move(payload));
  }
  if (auto refusal = account_->Charge(0, bytes + shared_bytes, "upload_mask")) return refusal;
  if (shared_bytes > 0) engine_.observer().Count(Counter::kSharedPayloadBytes, shared_bytes);
  if (auto refusal = masks_.Upload(upload, payloads)) return refusal;
  v1::StreamResponse response;
  response.mutable_mask_uploaded()->set_mask_id(upload.mask_id());
  stream_->Send(response);
  return std::nullopt;
}

std::optional<Refusal> Session::OnBringAnswer(const v1::BringAnswer& bring, uint64_t bytes) {
  if (auto refusal = account_->Charge(0, bytes, "bring_answer")) return refusal;
  if (auto refusal = CheckBringAnswer(bring)) return refusal;
  RowAnswer answer;  // its tokens were counted where they were drawn
  answer.parts.push_back(Encoded(bring.result()));
  shards_.AddBrought(bring.asked(), std::move(answer));
  return std::nullopt;
}

void Session::OnCancel(const v1::CancelStep& cancel) {
  const std::shared_ptr<StepMessage> step = stream_->Find(cancel.batch_id());
  if (step == nullptr) return;  // answered already: the answer and the cancel crossed
  engine_.Spend(account_.get(), price::kRow * step->rows());
  step->Cancel();
  shards_.Cancel(*step);
  engine_.batcher().Sweep();
}

void Session::Refuse(const v1::StreamRequest& message, const Refusal& refusal) {
  if (message.has_step()) return RefuseStep(message.step().batch_id(), refusal);
  sequences_.Skip(message);
  engine_.observer().Refused(refusal.reason, refusal.field, 1);
  stream_->Send(EncodeRefused(message, messages_, refusal));
}

void Session::RefuseStep(uint64_t batch_id, const Refusal& refusal) {
  engine_.observer().Refused(refusal.reason, refusal.field, 1);
  v1::StreamResponse response;
  response.mutable_results()->set_batch_id(batch_id);
  EncodeError(refusal, response.mutable_results()->mutable_error());
  stream_->Send(response);
}

void Session::Drain(v1::DrainingNotice::Cause cause, absl::Duration grace) {
  if (stream_->Drain()) {
    v1::StreamResponse response;
    response.mutable_draining()->set_cause(cause);
    SetDuration(grace, response.mutable_draining()->mutable_grace());
    stream_->Send(response);
  }
  if (cause == v1::DrainingNotice::CAUSE_SHUTDOWN) shards_.ShutDown();
}

void Session::Close() {
  if (!stream_->Close()) return;
  shards_.Close();
  const std::vector<std::shared_ptr<StepMessage>> steps = stream_->Steps();
  for (const auto& step : steps) step->Cancel();
  if (!steps.empty()) engine_.batcher().Sweep();
}

}  // namespace sortition::service

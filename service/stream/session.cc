// The life of a session, and the dispatch of its messages.
#include "service/stream/session.h"

#include <atomic>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/law/version.h"
#include "service/request/checks.h"
#include "service/request/region_payloads.h"
#include "service/request/strictness.h"
#include "service/result/encode.h"
#include "service/stream/session_impl.h"
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

void Session::Impl::OnRejectedFrame(const Refusal& refusal) {
  ++messages_;
  Refuse(v1::StreamRequest(), refusal);
}

void Session::Impl::BeginFrame(Frame frame) {
  ++messages_;
  rest_ = absl::ZeroDuration();
  frame_bytes_ = frame.bytes;
  const v1::StreamRequest& message = frame.message;
  DropIgnored(&frame.message);
  std::optional<Refusal> refusal = CheckFrame(frame);
  if (refusal) return Refuse(message, *refusal);
  switch (message.kind_case()) {
    case v1::StreamRequest::kHello:
      refusal = OnHello(message.hello());
      break;
    case v1::StreamRequest::kOpen:
      refusal = OnOpen(message.open());
      // What is long is gone on with as other streams allow.
      if (open_in_hand_ != nullptr) {
        google::protobuf::RepeatedField<uint32_t>().Swap(
            frame.message.mutable_open()->mutable_history()->mutable_tokens());
        open_in_hand_->message = std::move(frame.message);
        return GoOn();
      }
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
      refusal = OnFork(message.fork());
      break;
    case v1::StreamRequest::kUploadMask:
      refusal = OnUploadMask(message.upload_mask(), &frame.payloads);
      break;
    case v1::StreamRequest::kExportSequence:
      refusal = OnExport(message.export_sequence());
      break;
    case v1::StreamRequest::kImportSequence:
      refusal = OnImport(message.import_sequence());
      if (import_in_hand_ != nullptr) {
        std::string().swap(*frame.message.mutable_import_sequence()->mutable_state());
        import_in_hand_->message = std::move(frame.message);
        return GoOn();
      }
      break;
    case v1::StreamRequest::kAttachMemory:
      refusal = OnAttachMemory(message.attach_memory());
      break;
    case v1::StreamRequest::kBringAnswer:
      refusal = OnBringAnswer(message.bring_answer());
      break;
    case v1::StreamRequest::KIND_NOT_SET:
      refusal = MissingField("kind");
      break;
  }
  if (refusal) Refuse(message, *refusal);
}

void Session::Impl::GoOn() {
  rest_ = absl::ZeroDuration();
  if (open_in_hand_ != nullptr) {
    const auto refusal = TakePiece();
    if (refusal) Refuse(open_in_hand_->message, *refusal);
    if (refusal || open_in_hand_->taken == open_in_hand_->tokens.size()) EndOpenInHand();
  } else if (import_in_hand_ != nullptr) {
    const auto refusal = TakeImportPiece();
    if (refusal) Refuse(import_in_hand_->message, *refusal);
    if (refusal || import_in_hand_->taken == import_in_hand_->snapshot.kept.size()) EndImportInHand();
  }
}

// The welcome has the fields of the hello, every other message a notice before its answer.
void Session::Impl::DropIgnored(v1::StreamRequest* message) {
  if (!greeted_) {
    ignored_fields_.reset();
    if (message->hello().unknown_fields() == v1::UNKNOWN_FIELDS_IGNORE) ignored_fields_.emplace();
  }
  if (!ignored_fields_) return;
  std::vector<std::string> fields = ignored_fields_->Drop(message);
  if (!greeted_) {
    ignored_in_hello_ = std::move(fields);
  } else if (!fields.empty()) {
    v1::StreamResponse response;
    response.mutable_ignored_fields()->mutable_fields()->Assign(fields.begin(), fields.end());
    Send(std::move(response));
  }
}

std::optional<Refusal> Session::Impl::CheckFrame(const Frame& frame) const {
  const uint64_t most = engine_.limits().max_message_bytes;
  if (frame.bytes > most) {
    return Refusal{Reason::kTooMany, "message", absl::StrCat("<= ", most, " bytes"),
                   absl::StrCat("has ", frame.bytes, " bytes")};
  }
  if (auto refusal = FindUnknownBesideRows(frame.message)) return refusal;
  if (!frame.message.has_step() && !frame.message.has_upload_mask() && !frame.payloads.empty()) {
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
  welcome->set_memory_address(engine_.regions().address());
  welcome->set_max_message_bytes(limits.max_message_bytes);
  welcome->set_ready_words(true);
  welcome->set_server_instance(engine_.regions().instance());
  welcome->mutable_ignored_fields()->Assign(ignored_in_hello_.begin(), ignored_in_hello_.end());
  Send(std::move(response));
  return std::nullopt;
}

std::optional<Refusal> Session::Impl::OnAttachMemory(const v1::AttachMemory& attach) {
  memory_ = engine_.regions().Find(attach.token());
  if (memory_ != nullptr) return std::nullopt;
  return Refusal{Reason::kUnknownRegion, "attach_memory.token", "",
                 "no connection to the memory socket has this token"};
}

std::optional<Refusal> Session::Impl::OnUploadMask(const v1::UploadMask& upload, std::vector<Payload>* payloads) {
  if (auto refusal = AddRegionPayloads(upload, memory_.get(), payloads)) return refusal;
  const bool is_shared = upload.mask().source().has_region();
  const uint64_t shared_bytes = is_shared ? payloads->back().size : 0;
  if (auto refusal = client_->Charge(0, frame_bytes_ + shared_bytes, "upload_mask")) return refusal;
  if (shared_bytes > 0) engine_.observer().SharedPayload(shared_bytes);
  if (auto refusal = masks_.Upload(upload, *payloads)) return refusal;
  v1::StreamResponse response;
  response.mutable_mask_uploaded()->set_mask_id(upload.mask_id());
  Send(std::move(response));
  return std::nullopt;
}

void Session::Impl::Refuse(const v1::StreamRequest& message, const Refusal& refusal) {
  if (message.has_step()) return RefuseStep(message.step().batch_id(), refusal, 0, 0);
  // A history and a snapshot have one answer, however many pieces of them are still to come.
  if (message.open().history().continues())
    partial_histories_.Skip(message.open().request_id(), message.open().epoch());
  if (message.import_sequence().continues()) partial_snapshots_.Skip(message.import_sequence().open());
  engine_.observer().Refused(refusal.reason, 1);
  Send(EncodeRefused(message, messages_, refusal));
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
  bool is_told;
  {
    absl::MutexLock lock(&mutex_);
    is_told = std::exchange(draining_, true);
  }
  if (!is_told) {
    v1::StreamResponse response;
    response.mutable_draining()->set_cause(cause);
    SetDuration(grace, response.mutable_draining()->mutable_grace());
    Send(std::move(response));
  }
  // No stream takes the slices that they wait for.
  if (cause == v1::DrainingNotice::CAUSE_SHUTDOWN && !shutting_down_.exchange(true)) RefuseWaitingSlices();
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
  engine_.shards().Withdraw(this, nullptr);
  for (auto& step : steps) step->Cancel();
  if (!steps.empty()) engine_.batcher().Sweep();
}

Session::Session(Engine* engine, std::string tenant, std::shared_ptr<SessionSink> sink)
    : impl_(std::make_shared<Impl>(engine, std::move(tenant), std::move(sink), NextStreamId())) {}
Session::~Session() { impl_->Close(); }
void Session::BeginFrame(Frame frame) { impl_->BeginFrame(std::move(frame)); }
void Session::GoOn() { impl_->GoOn(); }
void Session::OnFrame(Frame frame) {
  BeginFrame(std::move(frame));
  while (rest() > absl::ZeroDuration()) GoOn();
}
void Session::OnRejectedFrame(const Refusal& refusal) { impl_->OnRejectedFrame(refusal); }
void Session::OnSent(const SentRelease& release) { impl_->OnSent(release); }
bool Session::WantsFrames() const { return impl_->WantsFrames(); }
absl::Duration Session::rest() const { return impl_->rest(); }
bool Session::Idle() const { return impl_->Idle(); }
void Session::Drain(v1::DrainingNotice::Cause cause, absl::Duration grace) { impl_->Drain(cause, grace); }
void Session::Close() { impl_->Close(); }

}  // namespace sortition::service

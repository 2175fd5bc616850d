// The events of one stream.
#include "service/server/sampling_call.h"

#include <algorithm>
#include <chrono>
#include <utility>
#include <variant>

#include "absl/strings/match.h"
#include "kernels/check.h"
#include "service/server/credentials.h"
#include "service/server/status_details.h"
#include "service/request/frame.h"

namespace sortition::server {
namespace {

constexpr absl::Duration kRetryAfter = absl::Seconds(1);

service::Refusal Draining() {
  return {service::Reason::kDraining, "", "", "the server is ending this stream; open another one", kRetryAfter};
}

}  // namespace

SamplingCall::SamplingCall(const Surroundings& surroundings, CallQueue* queue)
    : surroundings_(surroundings),
      queue_(queue),
      outbox_(std::make_shared<Outbox>(&stream_, written_.tag(), &surroundings.engine->clock(),
                                       surroundings.engine->limits().stream_unanswered_bytes)) {}

void SamplingCall::Request() {
  absl::MutexLock lock(&mutex_);
  requesting_ = true;
  context_.AsyncNotifyWhenDone(done_.tag());
  surroundings_.service->RequestStream(&context_, &stream_, queue_->get(), queue_->get(), requested_.tag());
}

void SamplingCall::Run(Handler handler, bool ok) {
  bool over;
  bool admitted;
  {
    absl::MutexLock lock(&mutex_);
    (this->*handler)(ok);
    over = IsOver();
    admitted = admitted_;
  }
  if (over) surroundings_.host->OnOver(this, admitted);
}

bool SamplingCall::IsOver() const {
  return !requesting_ && !reading_ && !resting_ && !finishing_ && !done_pending_ && !outbox_->writing();
}

void SamplingCall::OnRequested(bool ok) {
  requesting_ = false;
  if (!ok) return;  // the server has shut down; no other event follows
  done_pending_ = true;
  peer_ = context_.peer();
  transport_ = absl::StartsWith(peer_, "unix") ? service::Transport::kUnix : service::Transport::kTcp;
  evidence_ = EvidenceOf(context_);
  std::optional<service::Refusal> unauthorized = Authorize();
  if (std::optional<service::Refusal> refusal = surroundings_.host->OnAccepted(this)) {
    Refuse(*refusal);
    return;
  }
  admitted_ = true;
  if (unauthorized) {
    Refuse(*unauthorized);
    return;
  }
  auto client_stream = surroundings_.engine->clients().OpenStream(tenant_);
  if (const auto* refusal = std::get_if<service::Refusal>(&client_stream)) {
    Refuse(*refusal);
    return;
  }
  client_stream_ = std::get<service::ClientStream>(std::move(client_stream));
  Open();
}

std::optional<service::Refusal> SamplingCall::Authorize() {
  const Authorization& authorization = *surroundings_.authorization;
  authorized_version_ = authorization.version();  // first, so that a list that comes now is asked again
  auto authorized = authorization.Authorize(evidence_, kSample);
  if (auto* refusal = std::get_if<service::Refusal>(&authorized)) return std::move(*refusal);
  std::string& identity = std::get<std::string>(authorized);
  if (session_ != nullptr && identity != tenant_) {
    return service::Refusal{service::Reason::kUnauthenticated, "identity", "", "this client has another identity now"};
  }
  tenant_ = std::move(identity);
  return std::nullopt;
}

void SamplingCall::Refuse(const service::Refusal& refusal) {
  observer().Refused(refusal.reason, 1);
  surroundings_.log->Write(LogLevel::kWarning, "stream_refused",
                           {{"peer", peer_},
                            {"tenant", tenant_},
                            {"reason", service::ReasonName(refusal.reason)},
                            {"message", refusal.message}});
  End(refusal);
}

void SamplingCall::End(const service::Refusal& refusal) {
  // Behind a write that does not end no status would reach the client either.
  if (outbox_->writing()) {
    Abandon();
  } else {
    Finish(RefusedStatus(refusal));
  }
}

void SamplingCall::Open() {
  phase_ = Phase::kOpen;
  opened_ = surroundings_.engine->clock().Now();
  observer().StreamOpened(transport_);
  stream_log_.emplace(surroundings_.log, peer_, tenant_);
  session_ = std::make_unique<service::Session>(surroundings_.engine, tenant_, outbox_);
  Advance();
}

void SamplingCall::OnRead(bool ok) {
  reading_ = false;
  if (phase_ != Phase::kOpen) return;
  if (ok) {
    TakeMessage();
  } else {
    half_closed_ = true;
  }
  Advance();
}

void SamplingCall::OnRested(bool) {
  resting_ = false;
  if (phase_ == Phase::kOpen) {
    session_->GoOn();
    Rest();
  }
  Advance();
}

void SamplingCall::TakeMessage() {
  auto message = std::make_shared<const ReceivedMessage>(&incoming_, surroundings_.budget);
  observer().MessageReceived(transport_, message->bytes());
  auto decoded = service::DecodeFrame(message->segments(), message);
  if (const auto* refusal = std::get_if<service::Refusal>(&decoded)) {
    session_->OnRejectedFrame(*refusal);
    return;
  }
  auto& frame = std::get<service::Frame>(decoded);
  if (frame.message.has_hello()) stream_log_->Opened(frame.message.hello());
  session_->BeginFrame(std::move(frame));
  Rest();
}

void SamplingCall::Rest() {
  // The queue would go on with what this stream has sent, as long as there is any, before it looks at other streams.
  const absl::Duration rest = session_->rest();
  if (rest == absl::ZeroDuration()) return;
  resting_ = true;
  rest_.Set(queue_->get(), std::chrono::system_clock::now() + absl::ToChronoMicroseconds(rest), rested_.tag());
}

void SamplingCall::OnWritten(bool ok) {
  const Outbox::Written written = outbox_->OnWritten(ok);
  observer().MessageSent(transport_, written.bytes);
  if (session_ != nullptr) session_->OnSent(written.release);
  Advance();
}

void SamplingCall::OnFinished(bool) { finishing_ = false; }

void SamplingCall::OnDone(bool) {
  done_pending_ = false;
  if (phase_ == Phase::kOpen) Abandon();
  if (session_ == nullptr) return;
  const char* const ended = phase_ == Phase::kAbandoned ? "abandoned" : draining_ ? "drained" : "by client";
  observer().StreamEnded(transport_, ended);
  stream_log_->Closed(ended, surroundings_.engine->clock().Now() - opened_);
}

void SamplingCall::Advance() {
  if (phase_ != Phase::kOpen) return;
  if ((half_closed_ || draining_) && session_->Idle() && outbox_->CloseIfEmpty()) {
    Finish(half_closed_ ? grpc::Status::OK : RefusedStatus(Draining()));
    return;
  }
  if (!reading_ && !resting_ && !half_closed_ && session_->WantsFrames() && outbox_->HasRoom() &&
      surroundings_.budget->HasRoom()) {
    reading_ = true;
    stream_.Read(&incoming_, read_.tag());
  }
}

void SamplingCall::Drain(v1::DrainingNotice::Cause cause, absl::Duration grace) {
  absl::MutexLock lock(&mutex_);
  StartDraining(cause, grace);
}

void SamplingCall::StartDraining(v1::DrainingNotice::Cause cause, absl::Duration grace) {
  if (phase_ != Phase::kOpen) return;
  draining_ = true;
  drain_deadline_ = std::min(drain_deadline_, surroundings_.engine->clock().Now() + grace);
  session_->Drain(cause, grace);
  Advance();
}

void SamplingCall::Tick(absl::Time now) {
  absl::MutexLock lock(&mutex_);
  if (phase_ != Phase::kOpen) return;
  const service::Limits& limits = surroundings_.engine->limits();
  if (surroundings_.authorization->version() != authorized_version_) {
    if (std::optional<service::Refusal> refusal = Authorize()) {
      Refuse(*refusal);
      return;
    }
  }
  if (now - outbox_->writing_since() > limits.stalled_write) {
    stream_log_->Stalled();
    Abandon();
    return;
  }
  if (now >= drain_deadline_) {
    End(Draining());
    return;
  }
  if (!draining_ && limits.max_stream_age > absl::ZeroDuration() && now - opened_ >= limits.max_stream_age) {
    StartDraining(v1::DrainingNotice::CAUSE_STREAM_AGE, surroundings_.drain_grace);
  }
  Advance();
}

void SamplingCall::Finish(const grpc::Status& status) {
  phase_ = Phase::kFinishing;
  if (session_ != nullptr) {
    session_->Close();
    session_->OnSent(outbox_->Close());
  }
  finishing_ = true;
  stream_.Finish(status, finished_.tag());
}

void SamplingCall::Abandon() {
  phase_ = Phase::kAbandoned;
  session_->Close();
  session_->OnSent(outbox_->Close());
  context_.TryCancel();
}

}  // namespace sortition::server

// Answers on their way out, and the rules that streams over gRPC and over rings share.
#include "service/calls/stream_shell.h"

#include <algorithm>
#include <utility>

#include "kernels/check.h"
#include "service/limits.h"
#include "service/wire/frame.h"

namespace sortition::server {
namespace {

uint64_t ByteCount(const StreamTransport::Bytes& message) {
  if (const auto* text = std::get_if<std::string>(&message)) return text->size();
  return std::get<grpc::ByteBuffer>(message).Length();
}

}  // namespace

Outbox::Outbox(std::unique_ptr<StreamTransport> transport, service::TransportType kind, service::Engine* engine,
               std::shared_ptr<service::ClientAccount> account)
    : transport_(std::move(transport)), kind_(kind), engine_(*engine), account_(std::move(account)) {}

Outbox::~Outbox() { account_->GiveBackAnswer(waiting_bytes_); }

void Outbox::Add(uint64_t bytes) {
  waiting_bytes_ += bytes;
  account_->HoldAnswer(bytes);
}

void Outbox::Remove(uint64_t bytes) {
  waiting_bytes_ -= bytes;
  account_->GiveBackAnswer(bytes);
}

void Outbox::Send(const v1::StreamResponse& message, service::Credit credit) {
  Encoded encoded{transport_->Encode(message), 0, std::move(credit)};
  encoded.bytes = ByteCount(encoded.message);
  bool urgent;
  {
    absl::MutexLock lock(&mutex_);
    if (closed_) return;
    Add(encoded.bytes);
    waiting_.push_back(std::move(encoded));
    WriteWaiting();
    urgent = broken_ || !waiting_.empty();
  }
  // The message has been queued before this look: a drain that begins later finds it.
  transport_->AfterSend(urgent || draining());
}

void Outbox::WriteWaiting() {
  while (!waiting_.empty() && !writing_ && !broken_ && !closed_) {
    switch (transport_->Write(waiting_.front().message, waiting_.size() > 1)) {
      case StreamTransport::Written::kDone:
        Pop(/*ok=*/true);
        break;
      case StreamTransport::Written::kStarted:
        writing_ = true;
        since_ = engine_.clock().Now();
        return;
      case StreamTransport::Written::kNoRoom:
        if (since_ == absl::InfiniteFuture()) since_ = engine_.clock().Now();
        return;
      case StreamTransport::Written::kBroken:
        broken_ = true;
        return;
    }
  }
  if (waiting_.empty()) since_ = absl::InfiniteFuture();
}

void Outbox::Pop(bool ok) {
  const Encoded& first = waiting_.front();
  engine_.observer().MessageSent(kind_, ok ? first.bytes : 0);
  Remove(first.bytes);
  waiting_.pop_front();
}

bool Outbox::Flush() {
  absl::MutexLock lock(&mutex_);
  WriteWaiting();
  return !broken_;
}

void Outbox::OnWritten(bool ok) {
  absl::MutexLock lock(&mutex_);
  SORTITION_CHECK(writing_);
  Pop(ok);
  writing_ = false;
  since_ = absl::InfiniteFuture();
  if (ok) WriteWaiting();
}

bool Outbox::CloseIfEmpty() {
  absl::MutexLock lock(&mutex_);
  if (!waiting_.empty()) return false;
  closed_ = true;
  transport_->Close();
  return true;
}

void Outbox::Close() {
  absl::MutexLock lock(&mutex_);
  closed_ = true;
  transport_->Close();
  while (waiting_.size() > (writing_ ? 1 : 0)) {
    Remove(waiting_.back().bytes);
    waiting_.pop_back();
  }
}

bool Outbox::HasRoom() const {
  if (!account_->HasRoomForAnswer()) return false;
  absl::MutexLock lock(&mutex_);
  return waiting_.size() < kMostWaiting && waiting_bytes_ < engine_.limits().stream_unanswered_bytes;
}

bool Outbox::empty() const {
  absl::MutexLock lock(&mutex_);
  return waiting_.empty();
}

bool Outbox::writing() const {
  absl::MutexLock lock(&mutex_);
  return writing_;
}

absl::Time Outbox::waiting_since() const {
  absl::MutexLock lock(&mutex_);
  return since_;
}

StreamShell::StreamShell(const Options& options, std::unique_ptr<StreamTransport> transport)
    : options_(options),
      opened_(options.engine->clock().Now()),
      outbox_(std::make_shared<Outbox>(std::move(transport), options.transport, options.engine,
                                       options.engine->clients().Of(options.tenant))),
      session_(options.engine, options.tenant, outbox_) {
  options_.engine->observer().StreamOpened(options_.transport);
}

void StreamShell::TakeMessage(std::span<const devices::ByteSegment> segments, std::shared_ptr<const void> owner,
                              uint64_t bytes, service::Submitter thread) {
  options_.engine->observer().MessageReceived(options_.transport, bytes);
  auto decoded = service::DecodeFrame(
      segments, std::move(owner), [this] { return session_.NewStep(); }, options_.engine->limits());
  if (const auto* refusal = std::get_if<service::Refusal>(&decoded)) {
    session_.OnRejectedFrame(*refusal);
    return;
  }
  auto& frame = std::get<service::Frame>(decoded);
  if (frame.message.has_hello()) LogHello(frame.message.hello());
  // The first of several steps comes alone, too, and those behind it must not wait until its rows have run. So the last
  // message decides with it.
  const bool alone = thread != service::Submitter::kBusy && session_.Idle();
  const bool free = std::exchange(was_alone_, alone) && alone;
  session_.BeginFrame(std::move(frame), free ? thread : service::Submitter::kBusy);
}

void StreamShell::Drain(v1::DrainingNotice::Cause cause, absl::Duration grace) {
  {
    absl::MutexLock lock(&mutex_);
    drain_deadline_ = std::min(drain_deadline_, options_.engine->clock().Now() + grace);
  }
  session_.Drain(cause, grace);
  outbox_->StartDraining();
}

StreamShell::Due StreamShell::CheckTime(absl::Time now) {
  const service::Limits& limits = options_.engine->limits();
  if (now - outbox_->waiting_since() > limits.stalled_write) {
    options_.log->Write(LogLevel::kWarning, "stream_stalled",
                        {{"peer", options_.peer}, {"tenant", options_.tenant}, {"worker_session", worker_session_}});
    return Due::kStalled;
  }
  if (draining()) {
    absl::MutexLock lock(&mutex_);
    return now >= drain_deadline_ ? Due::kGraceOver : Due::kNothing;
  }
  if (limits.max_stream_age > absl::ZeroDuration() && now - opened_ >= limits.max_stream_age) {
    Drain(v1::DrainingNotice::CAUSE_STREAM_AGE, options_.drain_grace);
  }
  return Due::kNothing;
}

bool StreamShell::CloseIfDone(bool half_closed) {
  return (half_closed || draining()) && session_.Idle() && outbox_->CloseIfEmpty();
}

void StreamShell::Close() {
  session_.Close();
  outbox_->Close();
}

void StreamShell::LogHello(const v1::Hello& hello) {
  // The session refuses longer names and a second hello; the log must not hold them either.
  if (!worker_session_.empty() || hello.worker_session().size() > service::kMaxNameBytes ||
      hello.client().size() > service::kMaxNameBytes) {
    return;
  }
  worker_session_ = hello.worker_session();
  options_.log->Write(LogLevel::kInfo, "stream_open",
                      {{"peer", options_.peer},
                       {"tenant", options_.tenant},
                       {"worker_session", worker_session_},
                       {"client", hello.client()}});
}

void StreamShell::LogEnd(std::string_view how) const {
  options_.engine->observer().StreamEnded(options_.transport, how);
  options_.log->Write(LogLevel::kInfo, "stream_close",
                      {{"peer", options_.peer},
                       {"tenant", options_.tenant},
                       {"worker_session", worker_session_},
                       {"ended", how},
                       {"seconds", absl::ToDoubleSeconds(options_.engine->clock().Now() - opened_)}});
}

}  // namespace sortition::server

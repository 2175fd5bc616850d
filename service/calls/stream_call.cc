// The events of one call.
#include "service/calls/stream_call.h"

#include <chrono>
#include <cstddef>
#include <utility>
#include <variant>

#include "absl/strings/match.h"
#include "kernels/check.h"
#include "service/calls/load_reports.h"
#include "service/calls/status_details.h"
#include "service/net/arrivals.h"
#include "service/net/credentials.h"
#include "service/net/http2_guard.h"

namespace sortition::server {
namespace {

constexpr absl::Duration kRetryAfter = absl::Seconds(1);

service::Refusal Draining() {
  return {service::Reason::kDraining, "", "", "the server is ending this stream; open another one", kRetryAfter};
}

}  // namespace

ReceivedMessage::ReceivedMessage(grpc::ByteBuffer* buffer, std::shared_ptr<ReceiveBudget> budget,
                                 std::shared_ptr<service::ClientAccount> account)
    : bytes_(buffer->Length(), std::move(budget), std::move(account)) {
  // An empty message has no buffer at all.
  if (buffer->Valid()) SORTITION_CHECK(buffer->Dump(&slices_).ok());
  buffer->Clear();
  // A short slice holds its bytes within itself: views are valid only at the slices' final place.
  segments_.reserve(slices_.size());
  for (const grpc::Slice& slice : slices_) {
    segments_.push_back({reinterpret_cast<const std::byte*>(slice.begin()), slice.size()});
  }
}

// Writes to the call's stream, one message at a time, with `written` as the completion queue's tag.
class StreamCall::Transport final : public StreamTransport {
 public:
  Transport(Stream* stream, void* written) : stream_(stream), written_(written) {}

  Bytes Encode(const v1::StreamResponse& message) const override {
    grpc::ByteBuffer bytes;
    bool own_buffer;
    SORTITION_CHECK(grpc::SerializationTraits<v1::StreamResponse>::Serialize(message, &bytes, &own_buffer).ok());
    return bytes;
  }
  Written Write(const Bytes& message, bool more) override {
    grpc::WriteOptions options;
    // With more to come, gRPC may hold this message back to send several in one packet.
    if (more) options.set_buffer_hint();
    stream_->Write(std::get<grpc::ByteBuffer>(message), options, written_);
    return Written::kStarted;
  }
  void AfterSend(bool) override {}
  void Close() override { stream_ = nullptr; }

 private:
  Stream* stream_;
  void* const written_;
};

StreamCall::StreamCall(const Surroundings& surroundings, CallQueue* queue)
    : surroundings_(surroundings), queue_(queue) {}

StreamCall::~StreamCall() = default;

void StreamCall::Request() {
  absl::MutexLock lock(&mutex_);
  requesting_ = true;
  context_.AsyncNotifyWhenDone(done_.tag());
  surroundings_.service->RequestStream(&context_, &stream_, queue_->get(), queue_->get(), requested_.tag());
}

void StreamCall::Run(Handler handler, bool ok) {
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

bool StreamCall::IsOver() const { return !requesting_ && !reading_ && !backing_off_ && !done_pending_ && !IsWriting(); }

void StreamCall::OnRequested(bool ok) {
  requesting_ = false;
  if (!ok) return;  // the server has shut down; no other event follows
  done_pending_ = true;
  peer_ = context_.peer();
  transport_ = absl::StartsWith(peer_, "unix") ? service::TransportType::kUnix : service::TransportType::kTcp;
  evidence_ = EvidenceOf(context_);
  surroundings_.host->OnAccepted(this);
  if (const std::optional<service::Refusal> refusal = Admit()) {
    Refuse(*refusal);
  } else {
    Open();
  }
  accepted_.store(true, std::memory_order_release);
}

// Takes the place among the streams last: a refused caller holds none while it reads the refusal.
std::optional<service::Refusal> StreamCall::Admit() {
  auto authorized = Authorize();
  if (auto* refusal = std::get_if<service::Refusal>(&authorized)) return std::move(*refusal);
  tenant_ = std::get<std::string>(std::move(authorized));
  arrivals_ = Http2Guard::Instance().AddCaller(peer_);
  auto client_stream = surroundings_.engine->clients().OpenStream(tenant_);
  if (auto* refusal = std::get_if<service::Refusal>(&client_stream)) return std::move(*refusal);
  if (std::optional<service::Refusal> refusal = surroundings_.host->Admit()) return refusal;
  client_stream_ = std::get<service::ClientStream>(std::move(client_stream));
  admitted_ = true;
  return std::nullopt;
}

std::variant<std::string, service::Refusal> StreamCall::Authorize() {
  const Authorization& authorization = *surroundings_.authorization;
  authorized_version_ = authorization.version();  // read first: a list that comes meanwhile is then noticed
  return authorization.Authorize(evidence_, kSample);
}

std::optional<service::Refusal> StreamCall::FindRevoked() {
  if (surroundings_.authorization->version() == authorized_version_) return std::nullopt;
  auto authorized = Authorize();
  if (auto* refusal = std::get_if<service::Refusal>(&authorized)) return std::move(*refusal);
  if (std::get<std::string>(authorized) == tenant_) return std::nullopt;
  return service::Refusal{service::Reason::kUnauthenticated, "identity", "", "this client has another identity now"};
}

void StreamCall::Refuse(const service::Refusal& refusal) {
  observer().Refused(refusal.reason, refusal.field, 1);
  surroundings_.log->Write(LogLevel::kWarning, "stream_refused",
                           {{"peer", peer_},
                            {"tenant", tenant_},
                            {"reason", service::ReasonName(refusal.reason)},
                            {"message", refusal.message}});
  End(refusal);
}

void StreamCall::End(const service::Refusal& refusal) {
  // A status cannot overtake a write in progress, which may never end.
  if (shell_ && shell_->writing()) {
    Abandon();
  } else {
    Finish(RefusedStatus(refusal));
  }
}

void StreamCall::Open() {
  phase_ = Phase::kOpen;
  shell_.emplace(StreamShell::Options{.engine = surroundings_.engine,
                                      .log = surroundings_.log,
                                      .transport = transport_,
                                      .peer = peer_,
                                      .tenant = tenant_,
                                      .drain_grace = surroundings_.drain_grace},
                 std::make_unique<Transport>(&stream_, written_.tag()));
  Advance();
}

void StreamCall::OnRead(bool ok) {
  reading_ = false;
  if (arrivals_ != nullptr) arrivals_->EndRead(read_number_);
  if (phase_ != Phase::kOpen) return;
  if (ok) {
    TakeMessage();
  } else {
    half_closed_ = true;
  }
  Advance();
}

void StreamCall::OnBackedOff(bool) {
  backing_off_ = false;
  if (phase_ == Phase::kOpen) {
    shell_->Continue();
    BackOff();
  }
  Advance();
}

void StreamCall::TakeMessage() {
  auto message = std::make_shared<const ReceivedMessage>(&incoming_, surroundings_.budget, client_stream_.account());
  const std::span<const devices::ByteSegment> segments = message->segments();
  const uint64_t bytes = message->bytes();
  shell_->TakeMessage(segments, std::move(message), bytes,
                      queue_->was_alone() ? service::Submitter::kFree : service::Submitter::kBusy);
  BackOff();
}

void StreamCall::BackOff() {
  // Without a pause the queue would run all of this stream's next pieces before other streams.
  const absl::Duration pause = shell_->back_off();
  if (pause == absl::ZeroDuration()) return;
  backing_off_ = true;
  back_off_.Set(queue_->get(), std::chrono::system_clock::now() + absl::ToChronoMicroseconds(pause), backed_off_.tag());
}

void StreamCall::OnWritten(bool ok) {
  if (!answered_ && ok) Http2Guard::Instance().AddAnswer(peer_);
  answered_ |= ok;
  shell_->OnWritten(ok);
  Advance();
}

void StreamCall::OnFinished(bool) { finishing_ = false; }

void StreamCall::OnDone(bool) {
  done_pending_ = false;
  if (phase_ == Phase::kOpen) Abandon();
  if (shell_) shell_->LogEnd(phase_ == Phase::kAbandoned ? "abandoned" : shell_->draining() ? "drained" : "by client");
}

void StreamCall::Advance() {
  if (phase_ != Phase::kOpen) return;
  if (shell_->CloseIfDone(half_closed_)) {
    Finish(half_closed_ ? grpc::Status::OK : RefusedStatus(Draining()));
    return;
  }
  if (!reading_ && !backing_off_ && !half_closed_ && shell_->MayRead() && surroundings_.budget->HasRoom() &&
      client_stream_.account()->HasRoomForMessage()) {
    reading_ = true;
    if (arrivals_ != nullptr) read_number_ = arrivals_->BeginRead(client_stream_.account());
    stream_.Read(&incoming_, read_.tag());
  }
}

void StreamCall::Tick(absl::Time now, std::optional<absl::Duration> drain_grace) {
  if (!accepted_.load(std::memory_order_acquire)) return;
  const bool was_revoked = revoked_.has_value();
  if (shell_) {
    if (drain_grace && !std::exchange(told_, true)) shell_->Drain(v1::DrainingNotice::CAUSE_SHUTDOWN, *drain_grace);
    if (!was_revoked) revoked_ = FindRevoked();
  }
  if (!mutex_.TryLock()) {
    // An event still runs since the last tick. Its stream ends without the refusal that the lock would allow.
    if (was_revoked) context_.TryCancel();
    return;
  }
  CheckTime(now);
  mutex_.Unlock();
}

void StreamCall::CheckTime(absl::Time now) {
  const absl::Duration stalled_write = surroundings_.engine->limits().stalled_write;
  if (finishing_ && now - finishing_since_ > stalled_write) {
    finishing_since_ = absl::InfiniteFuture();
    Cancel();
  }
  // gRPC ends no write that waits in a socket, which is full while the client reads nothing.
  if (now - cancelled_since_ > stalled_write && IsWriting()) {
    cancelled_since_ = absl::InfiniteFuture();
    Http2Guard::Instance().EndUnread(peer_);
  }
  if (phase_ != Phase::kOpen) return;
  if (revoked_) {
    Refuse(*revoked_);
    return;
  }
  if (reading_ && arrivals_ != nullptr && arrivals_->IsGivenUp(read_number_)) {
    Refuse(client_stream_.account()->GivenUp());
    return;
  }
  switch (shell_->CheckTime(now)) {
    case StreamShell::Due::kStalled:
      Abandon();
      break;
    case StreamShell::Due::kGraceOver:
      End(Draining());
      break;
    case StreamShell::Due::kNothing:
      Advance();
      break;
  }
}

void StreamCall::Finish(const grpc::Status& status) {
  phase_ = Phase::kFinishing;
  if (shell_) shell_->Close();
  finishing_ = true;
  finishing_since_ = surroundings_.engine->clock().Now();
  if (surroundings_.load_reports != nullptr && !tenant_.empty()) surroundings_.load_reports->AddTo(&context_);
  stream_.Finish(status, finished_.tag());
}

void StreamCall::Abandon() {
  phase_ = Phase::kAbandoned;
  shell_->Close();
  Cancel();
}

void StreamCall::Cancel() {
  cancelled_since_ = surroundings_.engine->clock().Now();
  context_.TryCancel();
}

}  // namespace sortition::server

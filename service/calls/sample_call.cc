// The events of one call of Sample.
#include "service/calls/sample_call.h"

#include <grpcpp/server_context.h>
#include <grpcpp/support/async_stream.h>
#include <grpcpp/support/byte_buffer.h>

#include <atomic>
#include <chrono>
#include <string>
#include <utility>
#include <variant>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "kernels/check.h"
#include "service/calls/load_reports.h"
#include "service/calls/status_details.h"
#include "service/checks.h"
#include "service/limits.h"
#include "service/net/credentials.h"
#include "service/net/http2_guard.h"
#include "service/stream/sample_run.h"
#include "service/wire/sample_request.h"

namespace sortition::server {

using service::Reason;
using service::Refusal;

// Life: waits for a client -> reads its message -> waits for its turn -> runs -> is answered -> the answer is read. A
// caller that is not authorised is answered at once. Deletes itself after its last event.
class SampleCalls::Call final : public QueueEvent {
 public:
  Call(SampleCalls* calls, CallQueue* queue) : calls_(*calls), queue_(*queue) {
    queue_.AddCall();
    surroundings_.service->RequestSample(&context_, &stream_, queue_.get(), queue_.get(), tag());
  }

  void Run(bool ok) override {
    if (phase_ == Phase::kExpected && ok) {
      new Call(&calls_, &queue_);
      Expect();
      return;
    }
    // Not ok before a client has come: the server has shut down. After the answer: the client has gone.
    if (phase_ == Phase::kExpected || phase_ == Phase::kBegun) {
      CallQueue& queue = queue_;
      if (phase_ == Phase::kBegun) calls_.unread_.Remove(unread_);
      if (account_) account_->GiveBackAnswer(answer_bytes_);
      if (admitted_) surroundings_.host->OnAnswerRead();
      delete this;
      queue.RemoveCall();
      return;
    }
    const bool is_read = phase_ == Phase::kReading;
    std::optional<Refusal> refusal = !ok ? NoMessage() : is_read ? Take() : Begin();
    if (!refusal && (is_read || run_->has_pieces())) {
      phase_ = Phase::kWaiting;
      queue_.Defer(this);
      return;
    }
    phase_ = Phase::kBegun;
    if (refusal) Refuse(*refusal);
    EndPart();
  }

 private:
  enum class Phase { kExpected, kReading, kWaiting, kBegun };

  // Reads the message of a caller that is authorised.
  void Expect() {
    const auto authorized = surroundings_.authorization->Authorize(EvidenceOf(context_), kSample);
    if (const auto* refusal = std::get_if<Refusal>(&authorized)) {
      phase_ = Phase::kBegun;
      Refuse(*refusal);
      return;
    }
    Http2Guard::Instance().AddCaller(context_.peer());
    phase_ = Phase::kReading;
    stream_.Read(&request_, tag());
  }

  // Takes the message, or says why the call is refused: the list of clients may have changed since the call came.
  std::optional<Refusal> Take() {
    auto authorized = surroundings_.authorization->Authorize(EvidenceOf(context_), kSample);
    if (auto* refusal = std::get_if<Refusal>(&authorized)) return std::move(*refusal);
    tenant_ = std::get<std::string>(std::move(authorized));
    auto stream = surroundings_.engine->clients().OpenStream(tenant_);
    if (auto* refusal = std::get_if<Refusal>(&stream)) return std::move(*refusal);
    if (auto refusal = surroundings_.host->Admit()) return refusal;
    client_stream_ = std::get<service::ClientStream>(std::move(stream));
    admitted_ = true;

    service::Observer& observer = surroundings_.engine->observer();
    transport_ =
        absl::StartsWith(context_.peer(), "unix") ? service::TransportType::kUnix : service::TransportType::kTcp;
    observer.MessageReceived(transport_, request_.Length());
    const service::Bounds bounds(surroundings_.engine->limits());
    if (auto refusal = service::CheckByteCount(request_.Length(), bounds.max_message_bytes(), "message")) {
      return refusal;
    }
    if (!surroundings_.budget->HasRoom()) {
      return Refusal{Reason::kOverloaded, "message", bounds.max_received_bytes().Text(),
                     "the server holds as much as it may", absl::Seconds(1)};
    }
    if (auto refusal = client_stream_.account()->CheckRoomForCall()) return refusal;
    held_.emplace(request_.Length(), surroundings_.budget, client_stream_.account());
    return std::nullopt;
  }

  // Starts the rows or takes their next piece, or says why the call is refused.
  std::optional<Refusal> Begin() {
    if (run_) {
      run_->Continue();
      return std::nullopt;
    }
    if (auto refusal = Decode()) return refusal;
    run_.emplace(surroundings_.engine, tenant_, std::move(message_), held_->count());
    run_->Start(TimeLeft(), [this](service::SampleRun::Answer answer) { Answer(std::move(answer)); });
    return std::nullopt;
  }

  std::optional<Refusal> Decode() {
    grpc::Slice whole;
    if (request_.Valid() && !request_.DumpToSingleSlice(&whole).ok()) return NoMessage();
    request_.Clear();
    auto message = service::DecodeSample({reinterpret_cast<const char*>(whole.begin()), whole.size()},
                                         surroundings_.engine->limits());
    if (auto* refusal = std::get_if<Refusal>(&message)) return std::move(*refusal);
    message_ = std::get<std::shared_ptr<const v1::SampleRequest>>(std::move(message));
    return std::nullopt;
  }

  static Refusal NoMessage() { return service::NoSampleRequest(); }

  absl::Duration TimeLeft() const {
    const auto deadline = context_.deadline();
    if (deadline == std::chrono::system_clock::time_point::max()) return absl::InfiniteDuration();
    return absl::FromChrono(deadline - std::chrono::system_clock::now());
  }

  // Called by any thread, once.
  void Answer(service::SampleRun::Answer answer) {
    if (const auto* refusal = std::get_if<Refusal>(&answer)) return Refuse(*refusal);
    const auto& response = std::get<v1::SampleResponse>(answer);
    grpc::ByteBuffer bytes;
    bool own_buffer;
    SORTITION_CHECK(grpc::SerializationTraits<v1::SampleResponse>::Serialize(response, &bytes, &own_buffer).ok());
    auto account = surroundings_.engine->clients().Of(tenant_);
    if (const auto refusal = account->TakeAnswer(bytes.Length())) return Refuse(*refusal);
    account_ = std::move(account);
    answer_bytes_ = bytes.Length();
    surroundings_.engine->observer().MessageSent(transport_, bytes.Length());
    Http2Guard::Instance().AddAnswer(context_.peer());
    OnAnswered();
    stream_.WriteAndFinish(bytes, grpc::WriteOptions(), grpc::Status::OK, tag());
  }

  void Refuse(const Refusal& refusal) {
    surroundings_.engine->observer().Refused(refusal.reason, refusal.field, 1);
    surroundings_.log->Write(LogLevel::kWarning, "sample_refused",
                             {{"peer", context_.peer()},
                              {"tenant", tenant_},
                              {"reason", service::ReasonName(refusal.reason)},
                              {"message", refusal.message}});
    OnAnswered();
    stream_.Finish(RefusedStatus(refusal), tag());
  }

  // Ends the start of the rows or the answer, which may come before it. The later of the two frees the request, which
  // may be larger than the answer.
  void EndPart() {
    if (!ended_part_.exchange(true)) return;
    run_.reset();
    held_.reset();
  }

  // Called before the answer is written, whose end may come at once.
  void OnAnswered() {
    EndPart();
    client_stream_ = {};
    if (admitted_) surroundings_.host->OnAnswered();
    unread_ = calls_.unread_.Add(&context_);
    if (surroundings_.load_reports != nullptr && !tenant_.empty()) surroundings_.load_reports->AddTo(&context_);
  }

  SampleCalls& calls_;
  CallQueue& queue_;
  const Surroundings& surroundings_ = calls_.surroundings_;
  grpc::ServerContext context_;
  grpc::ByteBuffer request_;
  grpc::ServerAsyncReaderWriter<grpc::ByteBuffer, grpc::ByteBuffer> stream_{&context_};
  Phase phase_ = Phase::kExpected;
  std::atomic<bool> ended_part_ = false;
  bool admitted_ = false;
  std::string tenant_;
  service::TransportType transport_ = service::TransportType::kTcp;
  service::ClientStream client_stream_;              // while the call runs
  std::shared_ptr<service::ClientAccount> account_;  // holds answer_bytes_, once there is an answer
  uint64_t answer_bytes_ = 0;
  UnreadAnswers::Place unread_;  // once it is answered
  std::optional<ReceivedBytes> held_;
  std::shared_ptr<const v1::SampleRequest> message_;
  std::optional<service::SampleRun> run_;
};

void SampleCalls::Start(CallQueue* queue) { new Call(this, queue); }

}  // namespace sortition::server

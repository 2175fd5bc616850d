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
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "kernels/check.h"
#include "service/calls/load_reports.h"
#include "service/calls/status_details.h"
#include "service/checks.h"
#include "service/limits.h"
#include "service/net/arrivals.h"
#include "service/net/credentials.h"
#include "service/net/http2_guard.h"
#include "service/stream/sample_run.h"
#include "service/wire/sample_request.h"

namespace sortition::server {

using service::Reason;
using service::Refusal;

// Life: waits for a client -> reads its message -> waits for its turn -> runs -> is answered -> the answer is read. A
// caller that is not authorised is answered at once, and one whose message is given up before it was read. Deletes
// itself after its last event.
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
      if (answer_bytes_ != 0) account_->GiveBackAnswer(answer_bytes_);
      if (admitted_) surroundings_.host->OnAnswerRead();
      delete this;
      queue.RemoveCall();
      return;
    }
    const bool is_read = phase_ == Phase::kReading;
    if (is_read && arrivals_ != nullptr) arrivals_->EndRead(read_number_);
    if (is_read && !calls_.EndReading(this)) {
      // The ends of the read and of the refusal come in any order. This is the first.
      phase_ = Phase::kBegun;
      return;
    }
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

  bool IsGivenUp() const { return arrivals_ != nullptr && arrivals_->IsGivenUp(read_number_); }
  // Answers while the read is under way.
  void GiveUp() { Refuse(account_->GivenUp()); }

 private:
  enum class Phase { kExpected, kReading, kWaiting, kBegun };

  // Reads the message of a caller that is authorised.
  void Expect() {
    if (const auto refusal = Enter()) {
      phase_ = Phase::kBegun;
      Refuse(*refusal);
      return;
    }
    arrivals_ = Http2Guard::Instance().AddCaller(context_.peer());
    if (arrivals_ != nullptr) read_number_ = arrivals_->BeginRead(account_);
    phase_ = Phase::kReading;
    {
      absl::MutexLock lock(&calls_.mutex_);
      calls_.reading_.insert(this);
    }
    stream_.Read(&request_, tag());
  }

  std::optional<Refusal> Enter() {
    auto authorized = surroundings_.authorization->Authorize(EvidenceOf(context_), kSample);
    if (auto* refusal = std::get_if<Refusal>(&authorized)) return std::move(*refusal);
    auto entered = surroundings_.engine->clients().Enter(std::get<std::string>(authorized));
    if (auto* refusal = std::get_if<Refusal>(&entered)) return std::move(*refusal);
    account_ = std::get<std::shared_ptr<service::ClientAccount>>(std::move(entered));
    tenant_ = account_->identity();
    return std::nullopt;
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
    if (const auto refusal = client_stream_.account()->TakeAnswer(bytes.Length())) return Refuse(*refusal);
    account_ = client_stream_.account();
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
  std::shared_ptr<service::ClientAccount> account_;  // of the caller; holds answer_bytes_
  uint64_t answer_bytes_ = 0;
  std::shared_ptr<Arrivals> arrivals_;  // of the connection; null if it is not guarded
  uint64_t read_number_ = 0;            // of the read among them
  UnreadAnswers::Place unread_;         // once it is answered
  std::optional<ReceivedBytes> held_;
  std::shared_ptr<const v1::SampleRequest> message_;
  std::optional<service::SampleRun> run_;
};

void SampleCalls::Start(CallQueue* queue) { new Call(this, queue); }

bool SampleCalls::EndReading(Call* call) {
  absl::MutexLock lock(&mutex_);
  return reading_.erase(call) != 0;
}

void SampleCalls::Tick(absl::Time now) {
  unread_.Tick(now, surroundings_.engine->limits().stalled_write);
  std::vector<Call*> given_up;
  {
    absl::MutexLock lock(&mutex_);
    for (Call* call : reading_) {
      if (call->IsGivenUp()) given_up.push_back(call);
    }
    for (Call* call : given_up) reading_.erase(call);
  }
  for (Call* call : given_up) call->GiveUp();
}

}  // namespace sortition::server

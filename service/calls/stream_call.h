// One call of SamplingService.Stream on a queue: carries a stream's messages over gRPC, decides when to read, and knows
// when the call is over. stream_shell.h is the part that streams over rings share.
//
// Life: requested (Request) -> accepted -> open -> ended (by the client's half-close, by a drain, or abandoned) ->
// over. Over means that no event of the call is outstanding; only then may it be destroyed.
#pragma once

#include <grpcpp/alarm.h>
#include <grpcpp/server_context.h>
#include <grpcpp/support/async_stream.h>
#include <grpcpp/support/byte_buffer.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "devices/device.h"
#include "service/calls/call_queue.h"
#include "service/calls/stream_shell.h"
#include "service/engine.h"
#include "service/log/log.h"
#include "service/net/authorization.h"
#include "service/refusal.h"
#include "sortition/v1/sampling.grpc.pb.h"

namespace sortition::server {

class Arrivals;
class LoadReports;

// Counts the bytes of received messages that streams and rows in flight still hold. Thread-safe.
class ReceiveBudget {
 public:
  explicit ReceiveBudget(uint64_t most_bytes) : most_bytes_(most_bytes) {}

  // Returns false while messages hold the most bytes allowed. Streams are not read meanwhile. A message whose reading
  // has begun may exceed the bound.
  bool HasRoom() const { return held_bytes_.load(std::memory_order_relaxed) < most_bytes_; }

 private:
  friend class ReceivedBytes;
  const uint64_t most_bytes_;
  std::atomic<uint64_t> held_bytes_ = 0;
};

// Counts a message's bytes in the budget and the client's account while it exists.
class ReceivedBytes {
 public:
  ReceivedBytes(uint64_t count, std::shared_ptr<ReceiveBudget> budget, std::shared_ptr<service::ClientAccount> account)
      : count_(count), budget_(std::move(budget)), account_(std::move(account)) {
    budget_->held_bytes_.fetch_add(count_, std::memory_order_relaxed);
    account_->HoldMessage(count_);
  }
  ~ReceivedBytes() {
    budget_->held_bytes_.fetch_sub(count_, std::memory_order_relaxed);
    account_->GiveBackMessage(count_);
  }
  ReceivedBytes(const ReceivedBytes&) = delete;
  ReceivedBytes& operator=(const ReceivedBytes&) = delete;

  uint64_t count() const { return count_; }

 private:
  const uint64_t count_;
  const std::shared_ptr<ReceiveBudget> budget_;
  const std::shared_ptr<service::ClientAccount> account_;
};

// The bytes of one message as gRPC received them. Immutable. Holds references to gRPC's slices and copies no bytes.
class ReceivedMessage {
 public:
  // Empties `buffer`.
  ReceivedMessage(grpc::ByteBuffer* buffer, std::shared_ptr<ReceiveBudget> budget,
                  std::shared_ptr<service::ClientAccount> account);
  ReceivedMessage(const ReceivedMessage&) = delete;
  ReceivedMessage& operator=(const ReceivedMessage&) = delete;

  // The message's bytes in order. They live as long as this object.
  std::span<const devices::ByteSegment> segments() const { return segments_; }
  uint64_t bytes() const { return bytes_.count(); }

 private:
  const ReceivedBytes bytes_;
  std::vector<grpc::Slice> slices_;
  std::vector<devices::ByteSegment> segments_;
};

// The service, with messages as bytes. Sample is a stream of one message each way to gRPC, which would hold the whole
// message of a unary call before the caller can be authorised.
class RawSamplingService final : public v1::SamplingService::WithRawMethod_Stream<v1::SamplingService::Service> {
 public:
  RawSamplingService() {
    MarkMethodStreamed(sample_, nullptr);
    MarkMethodRaw(sample_);
  }

  void RequestSample(grpc::ServerContext* context,
                     grpc::ServerAsyncReaderWriter<grpc::ByteBuffer, grpc::ByteBuffer>* stream,
                     grpc::CompletionQueue* call_queue, grpc::ServerCompletionQueue* queue, void* tag) {
    RequestAsyncBidiStreaming(sample_, context, stream, call_queue, queue, tag);
  }

 private:
  const int sample_ = v1::SampleRequest::descriptor()
                          ->file()
                          ->FindServiceByName("SamplingService")
                          ->FindMethodByName("Sample")
                          ->index();
};

// Thread-safe. One queue runs the events, one at a time; one other thread calls Tick.
class StreamCall {
 public:
  using AsyncService = RawSamplingService;

  // The set of calls that this one belongs to. Its functions must not call into `call`.
  class Host {
   public:
    virtual ~Host() = default;
    // A client has started `call`.
    virtual void OnAccepted(StreamCall* call) = 0;
    // Returns why a call is not served, or nothing: then it counts as a stream.
    virtual std::optional<service::Refusal> Admit() = 0;
    // The call is over; this function may destroy it. `admitted`: it counted as a stream.
    virtual void OnOver(StreamCall* call, bool admitted) = 0;
  };

  // Only the budget is owned. All of it outlives the call.
  struct Surroundings {
    Host* host;
    AsyncService* service;
    const Authorization* authorization;
    service::Engine* engine;
    Log* log;
    const LoadReports* load_reports;  // null if off
    std::shared_ptr<ReceiveBudget> budget;
    absl::Duration drain_grace;  // of a stream that has reached its greatest age
  };

  StreamCall(const Surroundings& surroundings, CallQueue* queue);
  ~StreamCall();
  StreamCall(const StreamCall&) = delete;
  StreamCall& operator=(const StreamCall&) = delete;

  CallQueue* queue() const { return queue_; }

  // Waits on the queue for the next client. Called once.
  void Request();

  // Ends a call whose client does not read, a stream whose grace has passed or whose caller is no longer admitted;
  // drains an old one; reads again where there is room. Called every few milliseconds. Waits for no event that runs:
  // the next tick does what this one could not. `drain_grace`: set while the server drains. The client is told once,
  // and the stream ends when its steps are answered or the grace has passed.
  void Tick(absl::Time now, std::optional<absl::Duration> drain_grace);

 private:
  enum class Phase { kRequested, kOpen, kFinishing, kAbandoned };
  class Transport;
  using Stream = grpc::ServerAsyncReaderWriter<grpc::ByteBuffer, grpc::ByteBuffer>;
  using Handler = void (StreamCall::*)(bool ok);

  class Event final : public QueueEvent {
   public:
    Event(StreamCall* call, Handler handler) : call_(*call), handler_(handler) {}
    void Run(bool ok) override { call_.Run(handler_, ok); }

   private:
    StreamCall& call_;
    const Handler handler_;
  };

  void Run(Handler handler, bool ok);
  void OnRequested(bool ok) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void OnRead(bool ok) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void OnBackedOff(bool ok) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void OnWritten(bool ok) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void OnFinished(bool ok) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void OnDone(bool ok) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  // Returns why the caller is not served, or nothing: then the call counts as a stream.
  std::optional<service::Refusal> Admit() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Open() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void TakeMessage() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void BackOff() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Advance() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Finish(const grpc::Status& status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Cancel() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Abandon() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Refuse(const service::Refusal& refusal) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void End(const service::Refusal& refusal) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void CheckTime(absl::Time now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Returns who the caller is, or the refusal if it is not served.
  std::variant<std::string, service::Refusal> Authorize();
  // Returns the refusal if a newer list does not admit the caller under its identity.
  std::optional<service::Refusal> FindRevoked();
  bool IsWriting() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return finishing_ || (shell_ && shell_->writing()); }
  bool IsOver() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  service::Observer& observer() const { return surroundings_.engine->observer(); }

  const Surroundings surroundings_;
  CallQueue* const queue_;
  Event requested_{this, &StreamCall::OnRequested};
  Event read_{this, &StreamCall::OnRead};
  Event backed_off_{this, &StreamCall::OnBackedOff};
  Event written_{this, &StreamCall::OnWritten};
  Event finished_{this, &StreamCall::OnFinished};
  Event done_{this, &StreamCall::OnDone};

  grpc::ServerContext context_;
  Stream stream_{&context_};

  absl::Mutex mutex_;
  Phase phase_ ABSL_GUARDED_BY(mutex_) = Phase::kRequested;
  bool admitted_ ABSL_GUARDED_BY(mutex_) = false;
  bool half_closed_ ABSL_GUARDED_BY(mutex_) = false;
  // Events yet to come. The shell knows of the write.
  bool requesting_ ABSL_GUARDED_BY(mutex_) = false;
  bool reading_ ABSL_GUARDED_BY(mutex_) = false;
  bool backing_off_ ABSL_GUARDED_BY(mutex_) = false;
  bool finishing_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Time finishing_since_ ABSL_GUARDED_BY(mutex_) = absl::InfiniteFuture();
  absl::Time cancelled_since_ ABSL_GUARDED_BY(mutex_) = absl::InfiniteFuture();
  bool done_pending_ ABSL_GUARDED_BY(mutex_) = false;

  grpc::Alarm back_off_ ABSL_GUARDED_BY(mutex_);
  grpc::ByteBuffer incoming_ ABSL_GUARDED_BY(mutex_);
  service::TransportType transport_ ABSL_GUARDED_BY(mutex_) = service::TransportType::kTcp;
  std::string peer_ ABSL_GUARDED_BY(mutex_);
  bool answered_ ABSL_GUARDED_BY(mutex_) = false;  // the client has been sent a message
  service::ClientStream client_stream_ ABSL_GUARDED_BY(mutex_);
  std::shared_ptr<Arrivals> arrivals_ ABSL_GUARDED_BY(mutex_);  // of the connection; null if it is not guarded
  uint64_t read_number_ ABSL_GUARDED_BY(mutex_) = 0;            // of the read among them

  // Set by the event that accepts the call, before accepted_.
  Evidence evidence_;
  std::string tenant_;                // the caller's identity
  std::optional<StreamShell> shell_;  // once the caller is admitted; all but its Drain under the lock
  uint64_t authorized_version_ = 0;   // of the list asked last; then the ticks' own
  std::atomic<bool> accepted_ = false;

  // The ticks' own.
  bool told_ = false;  // of the server's drain
  std::optional<service::Refusal> revoked_;
};

}  // namespace sortition::server

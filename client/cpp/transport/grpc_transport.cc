// Implements Transport over a gRPC stream, with one write and one read at a time.
#include "client/cpp/transport/grpc_transport.h"

#include <deque>
#include <optional>
#include <stop_token>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/cpp/transport/grpc_channel.h"
#include "client/cpp/transport/shared_memory.h"
#include "client/cpp/transport/unix_socket.h"
#include "grpcpp/client_context.h"
#include "grpcpp/generic/generic_stub.h"
#include "grpcpp/impl/codegen/proto_utils.h"
#include "grpcpp/support/byte_buffer.h"
#include "kernels/check.h"

namespace sortition::client {
namespace {

constexpr char kMethod[] = "/sortition.v1.SamplingService/Stream";

std::string Joined(const OutgoingMessage& message) {
  std::string joined;
  for (const Segment& segment : message.segments) {
    absl::StrAppend(&joined, segment.owned,
                    absl::string_view(reinterpret_cast<const char*>(segment.borrowed.data()), segment.borrowed.size()));
  }
  return joined;
}

absl::Status FromGrpc(const grpc::Status& status) {
  if (status.ok()) return absl::UnavailableError("the server ended the stream");
  return absl::Status(static_cast<absl::StatusCode>(status.error_code()), status.error_message());
}

}  // namespace

// One stream. It keeps itself alive until the queue has returned its last operation.
class GrpcStream final : public Transport, public std::enable_shared_from_this<GrpcStream> {
 public:
  GrpcStream(GrpcConnector* connector, uint64_t number, StreamEvents* events, const std::string& target)
      : connector_(*connector),
        queue_(connector->events_),
        number_(number),
        events_(*events),
        call_(std::make_shared<Call>(MakeChannel(target, connector->channel_))),
        // The rest of the time is left to continue without shared memory.
        memory_by_(service::SteadyClock().Now() + connector->connect_timeout_ * 3 / 4) {
    AddToken(connector->token_, &call_->context);
  }

  void Start() {
    absl::MutexLock lock(&mutex_);
    self_ = shared_from_this();
    call_->rpc = call_->stub.PrepareCall(&call_->context, kMethod, queue_->get());
    pending_ = 1;
    call_->rpc->StartCall(&start_);
  }

  void Send(OutgoingMessage message) override {
    if (const std::shared_ptr<Transport> ring = moved()) {
      if (message.bytes() <= ring->max_message_bytes()) {
        ring->Send(std::move(message));
      } else {
        Outgrow();
      }
      return;
    }
    absl::MutexLock lock(&mutex_);
    if (ended_) return;
    if (hello_.empty()) hello_ = Joined(message);
    messages_.push_back(std::move(message));
  }

  void Flush(bool polls) override {
    if (const std::shared_ptr<Transport> ring = moved()) return ring->Flush(polls);
    if (Write()) polls ? queue_->Expect() : queue_->Attend();
  }

  // Begins to write the next message; false if there is none, or not yet.
  bool Write() {
    OutgoingMessage message;
    {
      absl::MutexLock lock(&mutex_);
      if (!started_ || writing_ || ended_ || messages_.empty()) return false;
      message = std::move(messages_.front());
      messages_.pop_front();
      writing_ = true;
      ++pending_;
    }
    // Not under the lock: a write may take long and may release slices. There is only one at a time.
    rpc()->Write(ToByteBuffer(std::move(message)), &write_);
    return true;
  }

  void Cancel() override {
    cancelled_.request_stop();
    CancelCall();
    queue_->Attend();
    if (const std::shared_ptr<Transport> ring = moved()) ring->Cancel();
  }

  std::shared_ptr<Poller> poller() override {
    const std::shared_ptr<Transport> ring = moved();
    return ring != nullptr ? ring->poller() : queue_;
  }
  uint64_t max_message_bytes() override {
    const std::shared_ptr<Transport> ring = moved();
    return ring != nullptr ? ring->max_message_bytes() : UINT64_MAX;
  }

  // The ring that the stream has moved to; null if it has not.
  std::shared_ptr<Transport> moved() {
    absl::MutexLock lock(&mutex_);
    return moved_;
  }
  std::shared_ptr<SharedMemory> memory() override {
    absl::MutexLock lock(&mutex_);
    return moved_ != nullptr ? moved_->memory() : memory_;
  }
  TransportInUse in_use() override {
    absl::MutexLock lock(&mutex_);
    return moved_ != nullptr ? moved_->in_use() : in_use_;
  }
  // Returns to gRPC: later streams do not move to a ring.
  bool Outgrow() override {
    if (moved() == nullptr) return false;
    connector_.stays_.store(true, std::memory_order_relaxed);
    Cancel();
    return true;
  }
  void DropMemory(const std::string& why) override {
    std::shared_ptr<SharedMemory> dropped;  // destroyed after the lock is released
    absl::MutexLock lock(&mutex_);
    memory_.swap(dropped);
    if (dropped != nullptr) dropped->Disconnect();
    in_use_ = {.note = why};
  }

 private:
  friend class GrpcConnector;
  enum class Operation { kStart, kRead, kWrite, kHalfClose, kFinish };
  struct Tag {
    GrpcStream* stream;
    Operation operation;
  };

  // Run by one thread at a time, which reads the connector's events.
  void OnOperation(Operation operation, bool ok);
  void OnRead(bool ok);
  void ReadNext();
  // Takes up the memory that the welcome offers, on a separate thread, and passes the welcome on. If the server moves
  // the stream to a ring, the call ends, and the ring's welcome follows.
  void TakeUp(const v1::StreamResponse& welcome);
  absl::Status ShareMemory(const v1::Welcome& welcome);
  // Returns the reason why the stream must not move to a ring; empty if it may.
  std::string WhyNoRing() const;
  void MoveTo(RingConnector::Opened opened);
  // Ends the call of a stream that has moved, once its hello has been written.
  void HalfClose();
  // The call and its channel. A stream that has moved to a ring drops it, and so its connection, when the call has
  // ended.
  struct Call {
    explicit Call(const std::shared_ptr<grpc::Channel>& channel) : stub(channel) {}
    grpc::GenericStub stub;
    grpc::ClientContext context;
    std::unique_ptr<grpc::GenericClientAsyncReaderWriter> rpc;
  };
  std::shared_ptr<Call> call() {
    absl::MutexLock lock(&mutex_);
    return call_;
  }
  // Called while an operation is pending or about to start.
  grpc::GenericClientAsyncReaderWriter* rpc() { return call()->rpc.get(); }
  void CancelCall() {
    if (const std::shared_ptr<Call> call = this->call()) call->context.TryCancel();
  }

  GrpcConnector& connector_;  // lives until the stream is over
  const std::shared_ptr<EventQueue> queue_;
  const uint64_t number_;
  StreamEvents& events_;
  std::shared_ptr<Call> call_ ABSL_GUARDED_BY(mutex_);
  const absl::Time memory_by_;
  std::stop_source cancelled_;
  grpc::ByteBuffer received_;  // used by OnOperation
  grpc::Status status_;        // used by OnOperation
  std::thread memory_thread_;  // runs TakeUp, between the welcome and the next read
  Tag start_{this, Operation::kStart};
  Tag read_{this, Operation::kRead};
  Tag write_{this, Operation::kWrite};
  Tag half_close_{this, Operation::kHalfClose};
  Tag finish_{this, Operation::kFinish};

  absl::Mutex mutex_;
  std::deque<OutgoingMessage> messages_ ABSL_GUARDED_BY(mutex_);
  bool started_ ABSL_GUARDED_BY(mutex_) = false;
  bool writing_ ABSL_GUARDED_BY(mutex_) = false;
  bool half_closed_ ABSL_GUARDED_BY(mutex_) = false;
  bool ended_ ABSL_GUARDED_BY(mutex_) = false;
  uint32_t pending_ ABSL_GUARDED_BY(mutex_) = 0;  // operations that the queue has not returned
  std::string hello_ ABSL_GUARDED_BY(mutex_);     // the first message, which a ring repeats
  std::shared_ptr<Transport> moved_ ABSL_GUARDED_BY(mutex_);
  std::shared_ptr<SharedMemory> memory_ ABSL_GUARDED_BY(mutex_);
  TransportInUse in_use_ ABSL_GUARDED_BY(mutex_);
  std::shared_ptr<GrpcStream> self_;  // while pending_ > 0
};

void GrpcStream::OnOperation(Operation operation, bool ok) {
  switch (operation) {
    case Operation::kStart: {
      {
        absl::MutexLock lock(&mutex_);
        started_ = ok;
        ++pending_;
      }
      if (ok) {
        rpc()->Read(&received_, &read_);
        Write();
      } else {
        rpc()->Finish(&status_, &finish_);
      }
      break;
    }
    case Operation::kRead:
      OnRead(ok);
      break;
    case Operation::kWrite: {
      {
        absl::MutexLock lock(&mutex_);
        writing_ = false;
        if (!ok) started_ = false;  // no more writes; the next read fails and ends the stream
      }
      if (moved() != nullptr) {
        HalfClose();
      } else {
        Write();
      }
      break;
    }
    case Operation::kHalfClose:
      break;
    case Operation::kFinish: {
      if (memory_thread_.joinable()) memory_thread_.join();
      std::deque<OutgoingMessage> unsent;
      {
        absl::MutexLock lock(&mutex_);
        ended_ = true;
        unsent.swap(messages_);
        if (memory_ != nullptr) memory_->Disconnect();
      }
      // After a move the ring reports the end.
      if (moved() == nullptr) events_.OnEnded(number_, FromGrpc(status_));
      break;
    }
  }
  std::shared_ptr<Call> over;
  std::shared_ptr<GrpcStream> last;
  {
    absl::MutexLock lock(&mutex_);
    if (--pending_ == 0) {
      last = std::move(self_);
      if (moved_ != nullptr) over.swap(call_);  // closes its connection
    }
  }
  over = nullptr;
  if (last != nullptr) connector_.OnStreamOver();
}

void GrpcStream::OnRead(bool ok) {
  {
    absl::MutexLock lock(&mutex_);
    ++pending_;
  }
  if (!ok) return rpc()->Finish(&status_, &finish_);
  ReceivedResponse received;
  v1::StreamResponse& response = received.message();
  if (!grpc::SerializationTraits<v1::StreamResponse>::Deserialize(&received_, &response).ok()) {
    CancelCall();  // invalid message: the next read fails
  } else if (response.has_welcome() && connector_.shared_memory_bytes_ > 0 && !memory_thread_.joinable()) {
    memory_thread_ = std::thread([this, welcome = response] { TakeUp(welcome); });
    return;
  } else {
    events_.OnResponse(number_, response);
  }
  // gRPC tells the server at once that there is room for the next message, which wakes a thread there. After the
  // caller's next step that thread is awake anyway.
  queue_->BeginLater([this] { ReadNext(); });
}

void GrpcStream::ReadNext() {
  received_.Clear();
  rpc()->Read(&received_, &read_);
}

void GrpcStream::TakeUp(const v1::StreamResponse& welcome) {
  const absl::Status shared = ShareMemory(welcome.welcome());
  if (moved() != nullptr) {
    HalfClose();
  } else {
    if (!shared.ok()) {
      absl::MutexLock lock(&mutex_);
      in_use_.note = std::string(shared.message());
    }
    events_.OnResponse(number_, welcome);
  }
  ReadNext();
}

absl::Status GrpcStream::ShareMemory(const v1::Welcome& welcome) {
  const RetryBudget budget(memory_by_, cancelled_.get_token());
  auto link = SharedMemory::Connect(welcome, connector_.memory_server_user_, budget);
  if (!link.ok()) return link.status();
  std::unique_ptr<MappedRegion> ring;
  std::string why = WhyNoRing();
  if (why.empty() && connector_.rings_) {
    auto opened = (*link)->OpenRing(budget);
    if (opened.ok()) {
      ring = *std::move(opened);
    } else if ((*link)->IsConnected()) {
      why = std::string(opened.status().message());
    } else {
      return opened.status();
    }
  }
  auto memory = SharedMemory::Make(*std::move(link), connector_.shared_memory_bytes_, budget);
  if (!memory.ok()) return memory.status();
  if (ring != nullptr) {
    MoveTo({std::move(ring), *std::move(memory)});
    return absl::OkStatus();
  }
  {
    absl::MutexLock lock(&mutex_);
    memory_ = *memory;
  }
  events_.OnMemory(memory->get(), budget);
  absl::MutexLock lock(&mutex_);
  if (!(*memory)->IsConnected()) {
    memory_ = nullptr;
    return absl::UnavailableError("the connection to the memory socket has ended");
  }
  in_use_.row_memory = true;
  in_use_.note = why;
  return absl::OkStatus();
}

void GrpcStream::MoveTo(RingConnector::Opened opened) {
  // Only the hello has been sent, because a stream is not used before its welcome.
  {
    absl::MutexLock lock(&mutex_);
    moved_ = connector_.rings_->Start(std::move(opened), number_, &events_);
    moved_->Send({.segments = {{hello_, {}}}, .hold = nullptr});
  }
  moved()->Flush(/*polls=*/false);
  if (cancelled_.stop_requested()) moved()->Cancel();
}

std::string GrpcStream::WhyNoRing() const {
  if (connector_.kind_ != TransportKind::kAuto) return "";
  if (!connector_.rings_) return "a memory socket cannot check tokens and certificates";
  return connector_.stays_.load(std::memory_order_relaxed) ? "a message did not fit a ring" : "";
}

void GrpcStream::HalfClose() {
  {
    absl::MutexLock lock(&mutex_);
    if (writing_ || half_closed_) return;
    half_closed_ = true;
    ++pending_;
  }
  rpc()->WritesDone(&half_close_);
}

GrpcConnector::GrpcConnector(const ClientOptions& options)
    : targets_(options.targets),
      kind_(options.transport.kind),
      shared_memory_bytes_(options.transport.shared_memory_bytes),
      connect_timeout_(options.retry.connect_timeout),
      memory_server_user_(options.transport.memory_server_user),
      token_(options.transport.token),
      channel_{MakeCredentials(options.transport.tls), options.transport.tls ? options.transport.tls->server_name : "",
               options.transport.keepalive, options.transport.tls.has_value()},
      events_(std::make_shared<EventQueue>([](void* tag, bool ok) {
        const GrpcStream::Tag* operation = static_cast<GrpcStream::Tag*>(tag);
        operation->stream->OnOperation(operation->operation, ok);
      })) {
  KeepGrpcRunning();
  // A memory socket checks users, not tokens and certificates.
  if (kind_ == TransportKind::kAuto && shared_memory_bytes_ > 0 && !channel_.secure && token_.empty())
    rings_.emplace(options);
}

GrpcConnector::~GrpcConnector() {
  events_->Attend();
  {
    absl::MutexLock lock(&mutex_);
    const auto none_live = [this]() ABSL_SHARED_LOCKS_REQUIRED(mutex_) { return live_streams_ == 0; };
    mutex_.Await(absl::Condition(&none_live));
  }
  events_->Stop();
}

std::shared_ptr<Transport> GrpcConnector::Start(size_t target, uint64_t stream, StreamEvents* events) {
  SORTITION_CHECK(target < targets_.size());
  {
    absl::MutexLock lock(&mutex_);
    ++live_streams_;
  }
  auto call = std::make_shared<GrpcStream>(this, stream, events, targets_[target]);
  call->Start();
  events_->Attend();
  return CancelledWithLast(std::move(call));
}

void GrpcConnector::OnStreamOver() {
  absl::MutexLock lock(&mutex_);
  --live_streams_;
}

}  // namespace sortition::client

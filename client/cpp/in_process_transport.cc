// A service session behind the Transport interface.
#include "client/cpp/in_process_transport.h"

#include <optional>
#include <utility>
#include <vector>

#include "devices/cpu/cpu_device.h"
#include "service/entropy.h"
#include "service/request/frame.h"
#include "service/sequence/checkpoint.h"
#include "service/stream/session.h"

namespace sortition::client {

SerialTasks::SerialTasks() : thread_([this] { Run(); }) {}

SerialTasks::~SerialTasks() {
  {
    absl::MutexLock lock(&mutex_);
    stopping_ = true;
  }
  thread_.join();
}

void SerialTasks::Post(absl::AnyInvocable<void()> task) {
  absl::MutexLock lock(&mutex_);
  tasks_.push_back(std::move(task));
}

void SerialTasks::Run() {
  const auto wanted = [this]() ABSL_SHARED_LOCKS_REQUIRED(mutex_) { return stopping_ || !tasks_.empty(); };
  for (;;) {
    absl::AnyInvocable<void()> task;
    {
      absl::MutexLock lock(&mutex_, absl::Condition(&wanted));
      if (tasks_.empty()) return;
      task = std::move(tasks_.front());
      tasks_.pop_front();
    }
    std::move(task)();
  }
}

namespace {

// One stream. Everything but the queue of outgoing messages belongs to the thread of `tasks`. The session holds its
// sink, which is this, until the stream ends.
class InProcessStream : public service::SessionSink, public std::enable_shared_from_this<InProcessStream> {
 public:
  InProcessStream(service::Engine* engine, SerialTasks* tasks, uint64_t number, StreamEvents* events)
      : engine_(*engine), tasks_(*tasks), number_(number), events_(*events) {}

  void Start() { session_.emplace(&engine_, "in-process", shared_from_this()); }

  void Queue(OutgoingMessage message) {
    absl::MutexLock lock(&mutex_);
    if (!ended_) messages_.push_back(std::move(message));
  }
  void Flush() {
    if (HasMessages()) Post([](InProcessStream& stream) { stream.Deliver(); });
  }
  void Cancel() {
    Post([](InProcessStream& stream) { stream.End(); });
  }

  void Send(v1::StreamResponse response, service::SentRelease release) override {
    Post([response = std::move(response), release](InProcessStream& stream) mutable {
      if (!stream.session_) return;
      stream.events_.OnResponse(stream.number_, std::move(response));
      if (!stream.session_) return;
      stream.session_->OnSent(release);
      stream.Deliver();
    });
  }

 private:
  template <typename Task>
  void Post(Task task) {
    absl::MutexLock lock(&mutex_);
    // After its end a stream's connector may be gone.
    if (ended_) return;
    tasks_.Post([self = shared_from_this(), task = std::move(task)]() mutable { task(*self); });
  }

  bool HasMessages() {
    absl::MutexLock lock(&mutex_);
    return !messages_.empty();
  }

  std::optional<OutgoingMessage> TakeMessage() {
    absl::MutexLock lock(&mutex_);
    if (messages_.empty()) return std::nullopt;
    OutgoingMessage message = std::move(messages_.front());
    messages_.pop_front();
    return message;
  }

  // As much as the session's window takes.
  void Deliver() {
    while (session_ && session_->WantsFrames()) {
      std::optional<OutgoingMessage> message = TakeMessage();
      if (!message) return;
      auto owner = std::make_shared<const OutgoingMessage>(std::move(*message));
      std::vector<devices::ByteSegment> segments;
      for (const Segment& segment : owner->segments) {
        segments.push_back(
            segment.borrowed.empty()
                ? devices::ByteSegment{reinterpret_cast<const std::byte*>(segment.owned.data()), segment.owned.size()}
                : devices::ByteSegment{segment.borrowed.data(), segment.borrowed.size()});
      }
      auto frame = service::DecodeFrame(segments, owner);
      if (auto* refusal = std::get_if<service::Refusal>(&frame)) {
        session_->OnRejectedFrame(*refusal);
      } else {
        session_->OnFrame(std::move(std::get<service::Frame>(frame)));
      }
    }
  }

  void End() {
    if (!session_) return;
    session_->Close();
    session_.reset();
    std::deque<OutgoingMessage> unsent;
    {
      absl::MutexLock lock(&mutex_);
      ended_ = true;
      unsent.swap(messages_);
    }
    events_.OnEnded(number_, absl::CancelledError("the stream was cancelled"));
  }

  service::Engine& engine_;
  SerialTasks& tasks_;
  const uint64_t number_;
  StreamEvents& events_;
  std::optional<service::Session> session_;
  absl::Mutex mutex_;
  std::deque<OutgoingMessage> messages_ ABSL_GUARDED_BY(mutex_);
  bool ended_ ABSL_GUARDED_BY(mutex_) = false;
};

// The caller's end of a stream.
class InProcessTransport final : public Transport {
 public:
  explicit InProcessTransport(std::shared_ptr<InProcessStream> stream) : stream_(std::move(stream)) {}
  ~InProcessTransport() override { stream_->Cancel(); }
  void Send(OutgoingMessage message) override { stream_->Queue(std::move(message)); }
  void Flush() override { stream_->Flush(); }
  void Cancel() override { stream_->Cancel(); }
  TransportInUse in_use() override { return {.in_process = true, .note = ""}; }

 private:
  const std::shared_ptr<InProcessStream> stream_;
};

service::Engine::Options EngineOptions(uint32_t threads, const service::Clock* clock, service::Observer* observer) {
  service::Engine::Options options;
  devices::CpuDeviceOptions cpu;
  cpu.name = "in-process";
  cpu.threads = threads;
  options.devices.push_back(std::make_unique<devices::CpuDevice>(cpu));
  service::SystemEntropy entropy;
  options.checkpoint_key = service::CheckpointKey::Trusting(&entropy);
  options.clock = clock;
  options.observer = observer;
  options.limits.max_queue_time = absl::ZeroDuration();  // the devices have no other users
  return options;
}

}  // namespace

struct InProcessConnector::Core {
  explicit Core(uint32_t threads) : engine(EngineOptions(threads, &clock, &observer)) {}

  service::SteadyClock clock;
  service::NullObserver observer;
  service::Engine engine;
  SerialTasks tasks;  // goes first, and with it the last session; a device that still answers finds its stream ended
};

InProcessConnector::InProcessConnector(const ClientOptions& options) : threads_(options.in_process_threads) {}

InProcessConnector::~InProcessConnector() = default;

std::shared_ptr<Transport> InProcessConnector::Start(size_t, uint64_t stream, StreamEvents* events) {
  if (core_ == nullptr) core_ = std::make_unique<Core>(threads_);
  auto call = std::make_shared<InProcessStream>(&core_->engine, &core_->tasks, stream, events);
  call->Start();
  return std::make_shared<InProcessTransport>(std::move(call));
}

}  // namespace sortition::client

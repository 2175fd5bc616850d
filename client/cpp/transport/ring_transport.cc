// Implements Transport over a ring: a reading thread, or a polling caller in its place.
#include "client/cpp/transport/ring_transport.h"

#include <algorithm>
#include <atomic>
#include <deque>
#include <optional>
#include <stop_token>
#include <thread>
#include <utility>
#include <variant>

#include "client/cpp/transport/memory_link.h"
#include "client/cpp/transport/shared_memory.h"
#include "kernels/check.h"
#include "service/memory/ring.h"

namespace sortition::client {
namespace {

using service::RingStatus;

// Upper bound on one sleep: the thread checks whether the server lives and whether the stream was cancelled.
constexpr absl::Duration kSleep = absl::Milliseconds(50);
// The same while messages wait for room in the ring, which wakes no thread.
constexpr absl::Duration kShortSleep = absl::Milliseconds(1);

int64_t Nanoseconds() { return absl::ToUnixNanos(service::SteadyClock().Now()); }

absl::Status Broken() { return absl::InternalError("the server has written an invalid message to the ring"); }

}  // namespace

// One stream. It is kept alive until its thread has ended.
class RingStream final : public Transport, public Poller, public std::enable_shared_from_this<RingStream> {
 public:
  // A memory socket's target, or a ring that is already open.
  using Origin = std::variant<std::string, RingConnector::Opened>;
  RingStream(RingConnector* connector, Origin origin, uint64_t number, StreamEvents* events)
      : connector_(*connector),
        origin_(std::move(origin)),
        number_(number),
        events_(*events),
        spins_(connector->spin_) {}

  std::thread Start() {
    return std::thread([this] {
      Run();
      connector_.OnStreamOver(this);
    });
  }

  void Send(OutgoingMessage message) override {
    absl::MutexLock lock(&mutex_);
    if (!ended_) messages_.push_back(std::move(message));
  }

  void Flush(bool) override {
    std::vector<OutgoingMessage> written;  // destroyed after the lock is released
    absl::MutexLock lock(&mutex_);
    Write(&written);
  }

  void Cancel() override {
    cancelled_.request_stop();
    if (connected_.load(std::memory_order_acquire)) service::WakeRingReader(rings_->pair.answer_words);
  }

  std::shared_ptr<SharedMemory> memory() override {
    absl::MutexLock lock(&mutex_);
    return memory_;
  }

  std::shared_ptr<Poller> poller() override { return shared_from_this(); }
  void Poll(absl::FunctionRef<bool()> done, absl::FunctionRef<bool()> awaited) override;
  uint64_t max_message_bytes() override { return service::kMostRingMessageBytes; }
  TransportInUse in_use() override { return {.kind = TransportKind::kRing, .row_memory = true, .note = ""}; }

 private:
  struct Rings {
    explicit Rings(std::unique_ptr<MappedRegion> mapped)
        : region(std::move(mapped)),
          pair(region->bytes().data()),
          writer(pair.request_words, pair.request_bytes),
          reader(pair.answer_words, pair.answer_bytes) {}
    const std::unique_ptr<MappedRegion> region;
    const service::RingPair pair;
    service::RingWriter writer;
    service::RingReader reader;
  };

  void Run();
  absl::StatusOr<RingConnector::Opened> Open(const std::string& target, const RetryBudget& budget) const;
  absl::Status Connect();
  // Reads until the stream ends, and returns the reason.
  absl::Status Read();
  // Reads one message; false if there is none.
  bool ReadSome() ABSL_EXCLUSIVE_LOCKS_REQUIRED(reading_);
  void Write(std::vector<OutgoingMessage>* written) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool HasUnwritten();
  bool HasNoPollers() const ABSL_SHARED_LOCKS_REQUIRED(polling_) { return pollers_ == 0; }

  RingConnector& connector_;
  Origin origin_;  // used by the thread
  const uint64_t number_;
  StreamEvents& events_;
  std::stop_source cancelled_;
  std::atomic<bool> connected_ = false;
  std::atomic<bool> asleep_ = false;  // the thread sleeps
  service::SpinChoice spins_;
  std::atomic<int64_t> waited_from_ = 0;  // start of the wait of a caller that sleeps for a message; 0: none

  absl::Mutex reading_;  // held by the reader of the ring; taken before every other lock
  absl::Status over_ ABSL_GUARDED_BY(reading_);
  std::string bytes_ ABSL_GUARDED_BY(reading_);

  absl::Mutex polling_;
  uint32_t pollers_ ABSL_GUARDED_BY(polling_) = 0;

  absl::Mutex mutex_;
  std::deque<OutgoingMessage> messages_ ABSL_GUARDED_BY(mutex_);
  std::shared_ptr<SharedMemory> memory_ ABSL_GUARDED_BY(mutex_);
  std::optional<Rings> rings_;  // set once, before connected_; its writer is guarded by mutex_, its reader by reading_
  bool write_broken_ ABSL_GUARDED_BY(mutex_) = false;
  bool ended_ ABSL_GUARDED_BY(mutex_) = false;
};

void RingStream::Run() {
  absl::Status status = Connect();
  if (status.ok()) status = Read();
  std::deque<OutgoingMessage> unsent;
  {
    absl::MutexLock lock(&mutex_);
    ended_ = true;
    unsent.swap(messages_);
    if (memory_ != nullptr) memory_->Disconnect();
  }
  unsent.clear();
  events_.OnEnded(number_, std::move(status));
}

absl::StatusOr<RingConnector::Opened> RingStream::Open(const std::string& target, const RetryBudget& budget) const {
  auto link = MemoryLink::Connect(target, budget, connector_.memory_server_user_);
  if (!link.ok()) return link.status();
  auto ring = (*link)->OpenRing(budget);
  if (!ring.ok()) return ring.status();
  auto memory = SharedMemory::Make(*std::move(link), connector_.shared_memory_bytes_, budget);
  if (!memory.ok()) return memory.status();
  return RingConnector::Opened{*std::move(ring), *std::move(memory)};
}

absl::Status RingStream::Connect() {
  const RetryBudget budget(connector_.connect_timeout_, cancelled_.get_token());
  if (const auto* target = std::get_if<std::string>(&origin_)) {
    auto opened = Open(*target, budget);
    if (!opened.ok()) return opened.status();
    origin_ = *std::move(opened);
  }
  auto& [ring, memory] = std::get<RingConnector::Opened>(origin_);
  {
    absl::MutexLock lock(&mutex_);
    memory_ = memory;
    rings_.emplace(std::move(ring));
  }
  events_.OnMemory(memory.get(), budget);
  connected_.store(true, std::memory_order_release);
  Flush(/*polls=*/false);
  return absl::OkStatus();
}

absl::Status RingStream::Read() {
  std::shared_ptr<SharedMemory> memory = this->memory();
  for (;;) {
    if (cancelled_.stop_requested()) return absl::CancelledError("the stream was cancelled");
    {
      absl::MutexLock lock(&polling_);
      polling_.AwaitWithTimeout(absl::Condition(this, &RingStream::HasNoPollers), kSleep);
      if (pollers_ != 0) continue;
    }
    bool idle;
    {
      absl::MutexLock lock(&reading_);
      idle = !ReadSome();
      if (!over_.ok()) return over_;
    }
    if (!idle) {
      const int64_t from = waited_from_.exchange(0, std::memory_order_relaxed);
      if (from != 0) spins_.OnMessage(absl::Nanoseconds(Nanoseconds() - from));
      continue;
    }
    if (!memory->IsConnected()) return absl::UnavailableError("the server ended the stream");
    Flush(/*polls=*/false);
    // Not under the lock, so that a caller that begins to poll can read.
    asleep_.store(true, std::memory_order_seq_cst);
    rings_->reader.Sleep(HasUnwritten() ? kShortSleep : kSleep);
    asleep_.store(false, std::memory_order_seq_cst);
  }
}

bool RingStream::ReadSome() {
  const RingStatus status = rings_->reader.Take(&bytes_);
  if (status == RingStatus::kNotNow || !over_.ok()) return false;
  ReceivedResponse response;
  if (status == RingStatus::kBroken || !response.message().ParseFromString(bytes_)) {
    over_ = Broken();
    return false;
  }
  events_.OnResponse(number_, response.message());
  return true;
}

void RingStream::Poll(absl::FunctionRef<bool()> done, absl::FunctionRef<bool()>) {
  if (!connected_.load(std::memory_order_acquire)) return;
  const int64_t start = Nanoseconds();
  const int64_t end = start + absl::ToInt64Nanoseconds(spins_.Next());
  if (end == start) {
    waited_from_.store(start, std::memory_order_relaxed);
    return;
  }
  {
    absl::MutexLock lock(&polling_);
    ++pollers_;
  }
  rings_->reader.StayAwake();
  bool is_done = done();
  int64_t now = start;
  for (; !is_done && now < end; now = Nanoseconds(), is_done = done()) {
    for (int i = 0; i < 64 && !rings_->reader.HasMore(); ++i) service::SpinPause();
    if (!rings_->reader.HasMore() || !reading_.TryLock()) continue;
    ReadSome();
    reading_.Unlock();
  }
  if (is_done) {
    spins_.OnMessage(absl::Nanoseconds(now - start));
  } else {
    waited_from_.store(start, std::memory_order_relaxed);
  }
  absl::MutexLock lock(&polling_);
  if (--pollers_ == 0 && asleep_.load(std::memory_order_seq_cst)) rings_->reader.SleepOn();
}

void RingStream::Write(std::vector<OutgoingMessage>* written) {
  if (!connected_.load(std::memory_order_acquire)) return;
  while (!messages_.empty() && !write_broken_) {
    const uint64_t size = messages_.front().bytes();
    std::vector<std::span<const std::byte>> parts;
    for (const Segment& segment : messages_.front().segments) {
      const std::span<const std::byte> bytes =
          segment.borrowed.empty() ? std::as_bytes(std::span(segment.owned.data(), segment.owned.size()))
                                   : segment.borrowed;
      if (!bytes.empty()) parts.push_back(bytes);
    }
    const RingStatus status = size <= service::kMostRingMessageBytes ? rings_->writer.Put(parts) : RingStatus::kBroken;
    write_broken_ = status == RingStatus::kBroken;
    if (write_broken_) Cancel();
    if (status != RingStatus::kDone) return;
    written->push_back(std::move(messages_.front()));
    messages_.pop_front();
  }
}

bool RingStream::HasUnwritten() {
  absl::MutexLock lock(&mutex_);
  return !messages_.empty();
}

RingConnector::RingConnector(const ClientOptions& options)
    : targets_(options.targets),
      shared_memory_bytes_(options.transport.shared_memory_bytes),
      connect_timeout_(options.retry.connect_timeout),
      memory_server_user_(options.transport.memory_server_user),
      spin_(options.transport.ring_spin) {}

RingConnector::~RingConnector() {
  {
    absl::MutexLock lock(&mutex_);
    const auto none_live = [this]() ABSL_SHARED_LOCKS_REQUIRED(mutex_) { return live_.empty(); };
    mutex_.Await(absl::Condition(&none_live));
  }
  JoinFinished();
}

std::shared_ptr<Transport> RingConnector::Start(size_t target, uint64_t stream, StreamEvents* events) {
  SORTITION_CHECK(target < targets_.size());
  return Start(std::make_shared<RingStream>(this, targets_[target], stream, events));
}

std::shared_ptr<Transport> RingConnector::Start(Opened opened, uint64_t stream, StreamEvents* events) {
  return Start(std::make_shared<RingStream>(this, std::move(opened), stream, events));
}

std::shared_ptr<Transport> RingConnector::Start(std::shared_ptr<RingStream> stream) {
  JoinFinished();
  {
    absl::MutexLock lock(&mutex_);
    live_.push_back({stream, stream->Start()});
  }
  return CancelledWithLast(std::move(stream));
}

void RingConnector::JoinFinished() {
  std::vector<Live> finished;
  {
    absl::MutexLock lock(&mutex_);
    finished.swap(finished_);
  }
  for (Live& live : finished) live.thread.join();
}

void RingConnector::OnStreamOver(RingStream* stream) {
  absl::MutexLock lock(&mutex_);
  const auto it = std::ranges::find_if(live_, [&](const Live& live) { return live.stream.get() == stream; });
  finished_.push_back(std::move(*it));
  live_.erase(it);
}

}  // namespace sortition::client

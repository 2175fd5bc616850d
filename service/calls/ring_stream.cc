// The thread of a ring, and the writing of its answers.
#include "service/calls/ring_stream.h"

#include <chrono>
#include <span>
#include <utility>
#include <variant>

#include "kernels/check.h"

namespace sortition::server {

using service::RingStatus;

namespace {

// The longest sleep. The thread then checks the time, and the ring: its worker may have spoilt the words that wake it.
constexpr absl::Duration kSleep = absl::Milliseconds(100);
// While answers wait for room, which no worker announces.
constexpr absl::Duration kShortSleep = absl::Milliseconds(1);

}  // namespace

// Writes into the answers' ring, and wakes the stream's thread. Keeps the memory for rows that end after the stream.
class RingStream::Transport final : public StreamTransport {
 public:
  Transport(const service::Clock* clock, absl::Duration spin, std::shared_ptr<const service::Region> memory,
            const service::RingPair& rings)
      : clock_(*clock),
        memory_(std::move(memory)),
        request_words_(rings.request_words),
        spins_(spin),
        answered_(absl::ToUnixNanos(clock->Now())),
        writer_(rings.answer_words, rings.answer_bytes) {}

  // The time to look for the next message before sleeping. Thread-safe.
  absl::Duration spin() const { return spins_.Next(); }
  // Called when a message has come. Thread-safe.
  void OnMessage() {
    spins_.OnMessage(absl::Nanoseconds(absl::ToUnixNanos(clock_.Now()) - answered_.load(std::memory_order_acquire)));
  }

  Bytes Encode(const v1::StreamResponse& message) const override { return message.SerializeAsString(); }
  Written Write(const Bytes& message, bool) override {
    const std::string& text = std::get<std::string>(message);
    // Answers are split by rows (service/wire/step_answers.h). The part of one row may be too long all the same.
    if (text.size() > service::kMostRingMessageBytes) return Written::kBroken;
    const std::span<const std::byte> part = std::as_bytes(std::span(text.data(), text.size()));
    switch (writer_.Put({&part, 1})) {
      case RingStatus::kDone:
        answered_.store(absl::ToUnixNanos(clock_.Now()), std::memory_order_release);
        return Written::kDone;
      case RingStatus::kNotNow:
        return Written::kNoRoom;
      case RingStatus::kBroken:
        return Written::kBroken;
    }
    __builtin_unreachable();
  }
  // The thread looks again with the worker's next message, unless it has something to do at once.
  void AfterSend(bool urgent) override {
    if (urgent || spins_.Next() > absl::ZeroDuration()) service::WakeRingReader(request_words_);
  }
  void Close() override {}

 private:
  const service::Clock& clock_;
  const std::shared_ptr<const service::Region> memory_;
  service::RingWords* const request_words_;
  service::SpinChoice spins_;
  std::atomic<int64_t> answered_;  // when the last answer was written
  service::RingWriter writer_;     // guarded by the outbox's lock
};

RingStream::RingStream(const Options& options, std::shared_ptr<const service::Region> memory)
    : RingStream(options, memory, service::RingPair(memory->data()),
                 std::make_unique<Transport>(&options.engine->clock(), options.spin, memory,
                                             service::RingPair(memory->data()))) {}

RingStream::RingStream(const Options& options, std::shared_ptr<const service::Region> memory,
                       const service::RingPair& rings, std::unique_ptr<Transport> transport)
    : options_(options),
      memory_(std::move(memory)),
      request_words_(rings.request_words),
      transport_(*transport),
      reader_(rings.request_words, rings.request_bytes),
      shell_({.engine = options.engine,
              .log = options.log,
              .transport = service::TransportType::kRing,
              .peer = options.peer,
              .tenant = options.tenant,
              .drain_grace = options.drain_grace},
             std::move(transport)),
      thread_([this] { Run(); }) {}

RingStream::~RingStream() { SORTITION_CHECK(!thread_.joinable()); }

void RingStream::BeginStop() {
  stopping_.store(true, std::memory_order_release);
  service::WakeRingReader(request_words_);
}

void RingStream::Stop() {
  BeginStop();
  thread_.join();
}

void RingStream::Drain(v1::DrainingNotice::Cause cause, absl::Duration grace) {
  shell_.Drain(cause, grace);
  service::WakeRingReader(request_words_);
}

void RingStream::Run() {
  while (!stopping_.load(std::memory_order_acquire) && Serve()) {
  }
  shell_.Close();
  shell_.LogEnd(how_);
  ended_.store(true, std::memory_order_release);
  options_.on_ended();
}

bool RingStream::Serve() {
  if (!shell_.Flush()) {
    how_ = "abandoned";
    return false;
  }
  if (!CheckTime()) return false;
  if (shell_.back_off() > absl::ZeroDuration()) {
    shell_.Continue();  // no other stream waits for this thread
    return true;
  }
  if (reader_.HasMore() && shell_.MayRead()) return TakeMessage();
  if (shell_.CloseIfDone(/*half_closed=*/false)) {
    how_ = "drained";
    return false;
  }
  AwaitMessage();
  return true;
}

bool RingStream::CheckTime() {
  if (!options_.still_authorized()) {
    how_ = "abandoned";
    return false;
  }
  switch (shell_.CheckTime(options_.engine->clock().Now())) {
    case StreamShell::Due::kNothing:
      return true;
    case StreamShell::Due::kStalled:
      how_ = "abandoned";
      return false;
    case StreamShell::Due::kGraceOver:
      how_ = "drained";
      return false;
  }
  __builtin_unreachable();
}

bool RingStream::TakeMessage() {
  transport_.OnMessage();
  if (reader_.Take(&message_) != RingStatus::kDone) {
    options_.log->Write(LogLevel::kWarning, "ring_broken", {{"message", "a message that no ring can hold"}});
    how_ = "abandoned";
    return false;
  }
  auto owner = std::make_shared<const std::string>(std::move(message_));
  const devices::ByteSegment segment{reinterpret_cast<const std::byte*>(owner->data()), owner->size()};
  const uint64_t bytes = owner->size();
  shell_.TakeMessage({&segment, 1}, std::move(owner), bytes,
                     reader_.HasMore() ? service::Submitter::kBusy : service::Submitter::kOwned);
  return true;
}

// While rows of this stream are computed the thread sleeps, and leaves the processor to them: the next message wakes
// it.
void RingStream::AwaitMessage() {
  if (shell_.has_waiting()) return reader_.Sleep(kShortSleep);
  if (shell_.idle()) {
    const auto end = std::chrono::steady_clock::now() + absl::ToChronoNanoseconds(transport_.spin());
    while (std::chrono::steady_clock::now() < end) {
      for (int i = 0; i < 64; ++i) {
        if (reader_.HasMore()) return;
        service::SpinPause();
      }
    }
  }
  if (stopping_.load(std::memory_order_acquire)) return;
  // A message that the window keeps out would end the sleep at once.
  if (!reader_.HasMore()) {
    reader_.Sleep(kSleep);
  } else {
    std::this_thread::sleep_for(absl::ToChronoMicroseconds(kShortSleep));
  }
}

}  // namespace sortition::server

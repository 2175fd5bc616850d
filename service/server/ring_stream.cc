// The thread of a ring, and its answers.
#include "service/server/ring_stream.h"

#include <algorithm>
#include <chrono>
#include <thread>
#include <utility>
#include <variant>

#include "kernels/check.h"
#include "service/request/frame.h"

namespace sortition::server {

using service::RingStatus;

namespace {

// Whoever sleeps looks up now and then: at the time, and past a client that plays with the words that wake it.
constexpr absl::Duration kSleep = absl::Milliseconds(100);
// While answers wait for room, which nobody announces.
constexpr absl::Duration kShortSleep = absl::Milliseconds(1);
constexpr size_t kMostWaiting = 1024;  // answers; then no request is read

}  // namespace

std::shared_ptr<RingStream> RingStream::Start(const Options& options, std::shared_ptr<const service::Region> memory) {
  std::shared_ptr<RingStream> stream(new RingStream(options, std::move(memory)));
  stream->session_ = std::make_unique<service::Session>(options.engine, options.tenant, stream);
  stream->thread_ = std::thread([stream = stream.get()] { stream->Run(); });
  return stream;
}

RingStream::RingStream(const Options& options, std::shared_ptr<const service::Region> memory)
    : options_(options),
      memory_(std::move(memory)),
      rings_(memory_->data()),
      reader_(rings_.request_words, rings_.request_bytes),
      stream_log_(options.log, options.peer, options.tenant),
      spins_(options.spin),
      answered_(options.engine->clock().Now()),
      writer_(rings_.answer_words, rings_.answer_bytes) {}

RingStream::~RingStream() { SORTITION_CHECK(!thread_.joinable()); }

void RingStream::Stop() {
  stopping_.store(true, std::memory_order_release);
  service::WakeRingReader(rings_.request_words);
  thread_.join();
  session_.reset();  // and with it the session's hold on this
}

void RingStream::Drain(v1::DrainingNotice::Cause cause, absl::Duration grace) {
  {
    absl::MutexLock lock(&mutex_);
    drain_deadline_ = std::min(drain_deadline_, options_.engine->clock().Now() + grace);
  }
  session_->Drain(cause, grace);
  draining_.store(true, std::memory_order_release);
  service::WakeRingReader(rings_.request_words);
}

void RingStream::Run() {
  service::Observer& observer = options_.engine->observer();
  observer.StreamOpened(service::Transport::kRing);
  opened_ = options_.engine->clock().Now();
  while (!stopping_.load(std::memory_order_acquire) && Serve()) {
  }
  session_->Close();
  observer.StreamEnded(service::Transport::kRing, how_);
  stream_log_.Closed(how_, options_.engine->clock().Now() - opened_);
  ended_.store(true, std::memory_order_release);
  options_.on_ended();
}

bool RingStream::Serve() {
  if (!Write() || !CheckTime()) return false;
  if (session_->rest() > absl::ZeroDuration()) {
    session_->GoOn();
    return true;
  }
  if (session_->WantsFrames() && HasRoom() && reader_.HasMore()) return TakeMessage();
  if (draining_.load(std::memory_order_acquire) && session_->Idle() && HasSaidAll()) {
    how_ = "drained";
    return false;
  }
  Rest();
  return true;
}

bool RingStream::TakeMessage() {
  {
    absl::MutexLock lock(&mutex_);
    spins_.OnMessage(options_.engine->clock().Now() - answered_);
  }
  if (reader_.Take(&message_) != RingStatus::kDone) {
    options_.log->Write(LogLevel::kWarning, "ring_broken", {{"message", "a message that no ring can hold"}});
    how_ = "abandoned";
    return false;
  }
  options_.engine->observer().MessageReceived(service::Transport::kRing, message_.size());
  auto owner = std::make_shared<const std::string>(std::move(message_));
  const devices::ByteSegment segment{reinterpret_cast<const std::byte*>(owner->data()), owner->size()};
  auto decoded = service::DecodeFrame({&segment, 1}, owner);
  if (const auto* refusal = std::get_if<service::Refusal>(&decoded)) {
    session_->OnRejectedFrame(*refusal);
  } else {
    auto& frame = std::get<service::Frame>(decoded);
    if (frame.message.has_hello()) stream_log_.Opened(frame.message.hello());
    session_->BeginFrame(std::move(frame));
  }
  return true;
}

// While rows of this stream are computed the processor is theirs: the next message, if one comes, wakes.
void RingStream::Rest() {
  {
    absl::MutexLock lock(&mutex_);
    if (!waiting_.empty()) return reader_.Sleep(kShortSleep);
  }
  if (session_->Idle()) {
    const auto end = std::chrono::steady_clock::now() + absl::ToChronoNanoseconds(spins_.Next());
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

bool RingStream::HasRoom() {
  absl::MutexLock lock(&mutex_);
  return waiting_.size() < kMostWaiting && waiting_bytes_ < options_.engine->limits().stream_unanswered_bytes;
}

bool RingStream::HasSaidAll() {
  absl::MutexLock lock(&mutex_);
  return waiting_.empty();
}

// What has left the session learns with the next message, unless the thread has something to do for it at once.
void RingStream::Send(v1::StreamResponse message, service::SentRelease release) {
  bool wakes = spins_.Next() > absl::ZeroDuration();
  {
    absl::MutexLock lock(&mutex_);
    waiting_.push_back({message.SerializeAsString(), release});
    waiting_bytes_ += waiting_.back().bytes.size();
    WriteWaiting();
    answered_ = options_.engine->clock().Now();
    wakes = wakes || broken_ || !waiting_.empty();
  }
  // Looked at once the answer is there: a drain that begins later finds it.
  if (wakes || draining_.load(std::memory_order_acquire)) service::WakeRingReader(rings_.request_words);
}

void RingStream::WriteWaiting() {
  while (!waiting_.empty() && !broken_) {
    const std::string& bytes = waiting_.front().bytes;
    const std::span<const std::byte> part = std::as_bytes(std::span(bytes.data(), bytes.size()));
    // Answers are split far below what a ring's message holds (service/result/split_results.h), pieces of state too.
    SORTITION_CHECK(bytes.size() <= service::kMostRingMessageBytes);
    const RingStatus status = writer_.Put({&part, 1});
    broken_ = status == RingStatus::kBroken;
    if (status != RingStatus::kDone) break;
    options_.engine->observer().MessageSent(service::Transport::kRing, bytes.size());
    sent_.rows += waiting_.front().release.rows;
    sent_.bytes += waiting_.front().release.bytes;
    waiting_bytes_ -= bytes.size();
    waiting_.pop_front();
  }
  if (waiting_.empty()) {
    waiting_since_ = absl::InfiniteFuture();
  } else if (waiting_since_ == absl::InfiniteFuture()) {
    waiting_since_ = options_.engine->clock().Now();
  }
}

bool RingStream::Write() {
  service::SentRelease sent;
  {
    absl::MutexLock lock(&mutex_);
    WriteWaiting();
    if (broken_) {
      how_ = "abandoned";
      return false;
    }
    sent = std::exchange(sent_, {});
  }
  session_->OnSent(sent);
  return true;
}

bool RingStream::CheckTime() {
  const service::Limits& limits = options_.engine->limits();
  const absl::Time now = options_.engine->clock().Now();
  if (limits.max_stream_age > absl::ZeroDuration() && now - opened_ >= limits.max_stream_age &&
      !draining_.load(std::memory_order_acquire)) {
    Drain(v1::DrainingNotice::CAUSE_STREAM_AGE, options_.drain_grace);
  }
  if (!options_.still_authorized()) {
    how_ = "abandoned";
    return false;
  }
  absl::MutexLock lock(&mutex_);
  if (now >= drain_deadline_) {
    how_ = "drained";
    return false;
  }
  if (now - waiting_since_ <= limits.stalled_write) return true;
  stream_log_.Stalled();
  how_ = "abandoned";
  return false;
}

}  // namespace sortition::server

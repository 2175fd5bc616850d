// The shell of a sampling stream: a session, the answers that wait to be written, the limits on time, and the stream's
// log lines and metrics.
//
// Streams over gRPC (stream_call.h) and over rings (ring_stream.h) drive the same shell. They differ in how they read
// and in their StreamTransport, which writes.
#pragma once

#include <grpcpp/support/byte_buffer.h>

#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <variant>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "devices/device.h"
#include "service/client_accounts.h"
#include "service/engine.h"
#include "service/log/log.h"
#include "service/observer.h"
#include "service/stream/session.h"
#include "sortition/v1/sampling.pb.h"

namespace sortition::server {

// The writing end of one stream. Belongs to an Outbox, which calls Write and Close under its lock.
class StreamTransport {
 public:
  // An encoded message in the form that the transport writes.
  using Bytes = std::variant<std::string, grpc::ByteBuffer>;

  enum class Written {
    kDone,     // the message has left
    kStarted,  // the write is in progress; Outbox::OnWritten ends it, and only then the next one begins
    kNoRoom,   // the message stays, to be tried again
    kBroken,   // the stream can carry nothing more
  };

  virtual ~StreamTransport() = default;
  // Thread-safe.
  virtual Bytes Encode(const v1::StreamResponse& message) const = 0;
  // Does not block. `message` lives until the write has ended. `more`: other messages wait behind this one.
  virtual Written Write(const Bytes& message, bool more) = 0;
  // Called after a message was queued, by any thread, without the lock, possibly after Close. `urgent`: the stream's
  // thread has something to do at once.
  virtual void AfterSend(bool urgent) = 0;
  // Nothing is written after this. The stream beneath may be destroyed once the write in progress has ended.
  virtual void Close() = 0;
};

// The answers of a session that wait to be written, in order. Thread-safe; never blocks for long. Rows in flight share
// it with the stream: answers that they send after Close are dropped.
class Outbox final : public service::SessionSink {
 public:
  // A stream is not read while its box holds this many encoded answers, or limits.stream_unanswered_bytes of them, or
  // all streams of its client hold limits.client_answer_bytes.
  static constexpr size_t kMostWaiting = 1024;

  // `engine` is not owned and outlives the box. `kind` names the transport for metrics. `account`: the client's.
  Outbox(std::unique_ptr<StreamTransport> transport, service::TransportType kind, service::Engine* engine,
         std::shared_ptr<service::ClientAccount> account);
  ~Outbox() override;

  void Send(const v1::StreamResponse& message, service::Credit credit) override;

  // Writes the waiting messages that the transport takes. Returns false if the transport can carry nothing more.
  bool Flush();
  // The write in progress has ended. Begins the next one if it went well.
  void OnWritten(bool ok);

  // Makes every later message urgent to the transport.
  void StartDraining() { draining_.store(true, std::memory_order_release); }
  bool draining() const { return draining_.load(std::memory_order_acquire); }

  // Closes the box unless something waits or is being written. Returns whether it is closed.
  bool CloseIfEmpty();
  // Closes the box and drops waiting messages. A write in progress still ends with OnWritten.
  void Close();

  bool HasRoom() const;
  bool empty() const;
  bool writing() const;
  // When the write in progress began, or since when the transport has no room; InfiniteFuture if neither holds.
  absl::Time waiting_since() const override;

 private:
  struct Encoded {
    StreamTransport::Bytes message;
    uint64_t bytes = 0;
    service::Credit credit;
  };

  void WriteWaiting() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Add(uint64_t bytes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Remove(uint64_t bytes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Removes the first message, which has left (`ok`) or never will.
  void Pop(bool ok) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const std::unique_ptr<StreamTransport> transport_;
  const service::TransportType kind_;
  service::Engine& engine_;
  const std::shared_ptr<service::ClientAccount> account_;
  std::atomic<bool> draining_ = false;
  mutable absl::Mutex mutex_;
  std::deque<Encoded> waiting_ ABSL_GUARDED_BY(mutex_);  // its first is being written if writing_
  uint64_t waiting_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  absl::Time since_ ABSL_GUARDED_BY(mutex_) = absl::InfiniteFuture();
  bool writing_ ABSL_GUARDED_BY(mutex_) = false;
  bool broken_ ABSL_GUARDED_BY(mutex_) = false;
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;
};

// Life: constructed, which opens the stream -> Close -> LogEnd. Drain may be called by any thread; the other functions
// are called by one thread at a time.
class StreamShell {
 public:
  struct Options {
    service::Engine* engine;           // not owned; outlives the shell
    Log* log;                          // likewise
    service::TransportType transport;  // for metrics
    std::string peer;                  // the worker's address, for the log
    std::string tenant;                // the caller's identity
    absl::Duration drain_grace;        // of a stream that has reached its greatest age
  };

  StreamShell(const Options& options, std::unique_ptr<StreamTransport> transport);
  StreamShell(const StreamShell&) = delete;
  StreamShell& operator=(const StreamShell&) = delete;

  // True if the worker's window and the waiting answers allow another message.
  bool MayRead() const { return session_.WantsFrames() && outbox_->HasRoom(); }
  // Takes one message, in stream order. `segments` are its bytes and live as long as `owner`. `thread`: the caller's,
  // as far as it knows.
  void TakeMessage(std::span<const devices::ByteSegment> segments, std::shared_ptr<const void> owner, uint64_t bytes,
                   service::Submitter thread);
  // While this is not zero, the driver calls Continue after a pause this long, before it takes the next message.
  absl::Duration back_off() const { return session_.back_off(); }
  void Continue() { session_.Continue(); }

  // True if no step waits for an answer.
  bool idle() const { return session_.Idle(); }
  // Writes waiting messages. Returns false if the stream can carry nothing more.
  bool Flush() { return outbox_->Flush(); }
  // Called when the write that the transport began has ended.
  void OnWritten(bool ok) { outbox_->OnWritten(ok); }
  // True if answers wait to be written.
  bool has_waiting() const { return !outbox_->empty(); }
  bool writing() const { return outbox_->writing(); }

  // Announces the end to the worker, once. The stream ends when its steps are answered, or when the shortest `grace`
  // has passed.
  void Drain(v1::DrainingNotice::Cause cause, absl::Duration grace);
  bool draining() const { return outbox_->draining(); }

  enum class Due {
    kNothing,
    kStalled,    // the worker has read nothing for limits.stalled_write, which has been logged
    kGraceOver,  // the grace of a drain has passed
  };
  // Returns the work that is due at `now`. Begins to drain a stream that has reached limits.max_stream_age.
  Due CheckTime(absl::Time now);

  // Closes the stream if it drains, or the worker sends nothing more (`half_closed`), and all is answered and written.
  // Returns whether it is closed.
  bool CloseIfDone(bool half_closed);
  // Cancels the session's steps and drops waiting messages. Idempotent.
  void Close();
  // Logs and counts the stream's end. `how`: "by client", "drained" or "abandoned".
  void LogEnd(std::string_view how) const;

 private:
  void LogHello(const v1::Hello& hello);

  const Options options_;
  const absl::Time opened_;
  std::string worker_session_;  // from the hello
  bool was_alone_ = false;      // the last message was
  const std::shared_ptr<Outbox> outbox_;
  service::Session session_;
  absl::Mutex mutex_;
  absl::Time drain_deadline_ ABSL_GUARDED_BY(mutex_) = absl::InfiniteFuture();
};

}  // namespace sortition::server

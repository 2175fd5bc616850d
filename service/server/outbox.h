// What a session has said and gRPC has not taken yet: one write at a time, in order.
#pragma once

#include <grpcpp/support/async_stream.h>
#include <grpcpp/support/byte_buffer.h>

#include <cstdint>
#include <deque>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "service/clock.h"
#include "service/stream/session.h"

namespace sortition::server {

// Thread-safe; never blocks for long. Outlives its stream: rows in flight may still answer into it, and after Close
// what they say is dropped.
class Outbox final : public service::SessionSink {
 public:
  using Stream = grpc::ServerAsyncReaderWriter<grpc::ByteBuffer, grpc::ByteBuffer>;

  // Encoded answers that may wait before the stream is not read any further: so many, ...
  static constexpr size_t kMostWaiting = 1024;

  // ... of `most_bytes` together. Writes with `written` as the completion queue's tag. `stream` and `written` live
  // until Close or CloseIfEmpty has closed the box and writing() is false; `clock` outlives the box.
  Outbox(Stream* stream, void* written, const service::Clock* clock, uint64_t most_bytes);

  void Send(v1::StreamResponse message, service::SentRelease release) override;

  // A message that was written, or could not be.
  struct Written {
    service::SentRelease release;
    uint64_t bytes = 0;  // that have left
  };

  // The write that `written` stands for is over; starts the next one if it went well.
  Written OnWritten(bool ok);

  // Closes the box unless something waits or is being written. Returns whether it is closed.
  bool CloseIfEmpty();
  // Closes the box and drops what waits. Returns what can never leave. A write in progress still ends with OnWritten.
  service::SentRelease Close();

  bool HasRoom() const;
  bool writing() const;
  // When the write in progress began; InfiniteFuture if there is none.
  absl::Time writing_since() const;

 private:
  struct Encoded {
    grpc::ByteBuffer bytes;
    service::SentRelease release;
  };

  void WriteNext() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const service::Clock& clock_;
  void* const written_;
  const uint64_t most_bytes_;
  mutable absl::Mutex mutex_;
  Stream* stream_ ABSL_GUARDED_BY(mutex_);               // null when closed
  std::deque<Encoded> waiting_ ABSL_GUARDED_BY(mutex_);  // its first is being written if writing_
  uint64_t waiting_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  bool writing_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Time since_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace sortition::server

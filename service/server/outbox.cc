// Encoding and writing of answers.
#include "service/server/outbox.h"

#include <utility>

#include "kernels/check.h"
#include "sortition/v1/sampling.grpc.pb.h"

namespace sortition::server {

Outbox::Outbox(Stream* stream, void* written, const service::Clock* clock, uint64_t most_bytes)
    : clock_(*clock), written_(written), most_bytes_(most_bytes), stream_(stream) {}

void Outbox::Send(v1::StreamResponse message, service::SentRelease release) {
  Encoded encoded{{}, release};
  bool own_buffer;
  SORTITION_CHECK(grpc::SerializationTraits<v1::StreamResponse>::Serialize(message, &encoded.bytes, &own_buffer).ok());
  absl::MutexLock lock(&mutex_);
  if (stream_ == nullptr) return;
  waiting_bytes_ += encoded.bytes.Length();
  waiting_.push_back(std::move(encoded));
  if (!writing_) WriteNext();
}

void Outbox::WriteNext() {
  writing_ = true;
  since_ = clock_.Now();
  grpc::WriteOptions options;
  // With more to come, gRPC may hold this message back to send several in one packet.
  if (waiting_.size() > 1) options.set_buffer_hint();
  stream_->Write(waiting_.front().bytes, options, written_);
}

Outbox::Written Outbox::OnWritten(bool ok) {
  absl::MutexLock lock(&mutex_);
  SORTITION_CHECK(writing_);
  const uint64_t bytes = waiting_.front().bytes.Length();
  const Written written{waiting_.front().release, ok ? bytes : 0};
  waiting_bytes_ -= bytes;
  waiting_.pop_front();
  writing_ = false;
  if (ok && stream_ != nullptr && !waiting_.empty()) WriteNext();
  return written;
}

bool Outbox::CloseIfEmpty() {
  absl::MutexLock lock(&mutex_);
  if (!waiting_.empty()) return false;
  stream_ = nullptr;
  return true;
}

service::SentRelease Outbox::Close() {
  absl::MutexLock lock(&mutex_);
  stream_ = nullptr;
  service::SentRelease dropped;
  while (waiting_.size() > (writing_ ? 1 : 0)) {
    dropped.rows += waiting_.back().release.rows;
    dropped.bytes += waiting_.back().release.bytes;
    waiting_bytes_ -= waiting_.back().bytes.Length();
    waiting_.pop_back();
  }
  return dropped;
}

bool Outbox::HasRoom() const {
  absl::MutexLock lock(&mutex_);
  return waiting_.size() < kMostWaiting && waiting_bytes_ < most_bytes_;
}

bool Outbox::writing() const {
  absl::MutexLock lock(&mutex_);
  return writing_;
}

absl::Time Outbox::writing_since() const {
  absl::MutexLock lock(&mutex_);
  return writing_ ? since_ : absl::InfiniteFuture();
}

}  // namespace sortition::server

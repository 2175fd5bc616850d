// The handle's view of its record.
#include "client/cpp/sequence.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "client/cpp/client_core.h"

namespace sortition::client {

Sequence::Sequence(std::shared_ptr<ClientCore> core, std::shared_ptr<SequenceRecord> record)
    : core_(std::move(core)), record_(std::move(record)) {}

Sequence::~Sequence() { core_->Close(record_); }

uint64_t Sequence::seed() const {
  absl::MutexLock lock(&record_->mutex);
  return record_->seed;
}

bool Sequence::stateful() const {
  absl::MutexLock lock(&record_->mutex);
  return record_->stateful;
}

uint32_t Sequence::position() const {
  absl::MutexLock lock(&record_->mutex);
  return record_->history.position();
}

std::vector<uint32_t> Sequence::tokens() const {
  absl::MutexLock lock(&record_->mutex);
  return record_->history.tokens();
}

uint32_t Sequence::turns() const {
  absl::MutexLock lock(&record_->mutex);
  return record_->history.turns();
}

absl::Status Sequence::CheckToken(uint32_t token) const {
  const uint32_t live = record_->options.live_vocabulary_size.value_or(record_->options.vocabulary_size);
  if (token < live) return absl::OkStatus();
  return absl::OutOfRangeError(absl::StrCat("token ", token, " is outside the live vocabulary (< ", live, ")"));
}

absl::Status Sequence::CheckNoStep() const {
  if (!record_->in_flight) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat("a step of ", request_id(), " is in flight"));
}

absl::StatusOr<History> Sequence::ForkHistory(std::optional<uint32_t> position) const {
  absl::MutexLock lock(&record_->mutex);
  if (absl::Status status = CheckNoStep(); !status.ok()) return status;
  const uint32_t end = record_->history.position();
  const uint32_t at = position.value_or(end);
  if (at > end) {
    return absl::OutOfRangeError(absl::StrCat("Fork: position ", at, " is beyond the end (<= ", end, ")"));
  }
  return History::ForkOf(record_->history, at);
}

absl::Status Sequence::ReplaceLast(uint32_t token) {
  if (absl::Status status = CheckToken(token); !status.ok()) return status;
  absl::MutexLock lock(&record_->mutex);
  if (absl::Status status = CheckNoStep(); !status.ok()) return status;
  return record_->history.ReplaceLast(token);
}

absl::Status Sequence::Append(std::span<const uint32_t> tokens) {
  for (uint32_t token : tokens) {
    if (absl::Status status = CheckToken(token); !status.ok()) return status;
  }
  absl::MutexLock lock(&record_->mutex);
  if (absl::Status status = CheckNoStep(); !status.ok()) return status;
  record_->history.Append(tokens);
  return absl::OkStatus();
}

absl::Status Sequence::Truncate(uint32_t position) {
  absl::MutexLock lock(&record_->mutex);
  if (absl::Status status = CheckNoStep(); !status.ok()) return status;
  return record_->history.Truncate(position);
}

}  // namespace sortition::client

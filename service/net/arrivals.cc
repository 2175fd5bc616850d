// Reads, and the bytes that count.
#include "service/net/arrivals.h"

#include <algorithm>

#include "kernels/check.h"

namespace sortition::server {

// A message of a call that the server has ended may stay among the guard's bytes: no frame of the client says that it
// ends. So they count for no more than the reads can hold.
void Arrivals::Count() {
  if (account_ == nullptr) return;
  given_up_bytes_ = std::min(given_up_bytes_, bytes_);
  const uint64_t counted = std::min(bytes_ - given_up_bytes_, reads_ * account_->most_read_bytes());
  account_->ChangeArriving(counted_, counted);
  counted_ = counted;
}

bool Arrivals::Set(uint64_t bytes) {
  absl::MutexLock lock(&mutex_);
  bytes_ = bytes;
  Count();
  if (counted_ == 0 || account_->HasRoomToArrive()) return true;
  if (given_up_reads_ != 0) return false;
  given_up_before_.store(next_read_, std::memory_order_relaxed);
  given_up_reads_ = reads_;
  given_up_bytes_ = bytes_;
  Count();
  return true;
}

bool Arrivals::MayReceive(absl::Time now) {
  absl::MutexLock lock(&mutex_);
  return counted_ < kShortBytes || account_->MayReceive(this, now);
}

void Arrivals::Close() {
  absl::MutexLock lock(&mutex_);
  bytes_ = 0;
  Count();
}

uint64_t Arrivals::BeginRead(const std::shared_ptr<service::ClientAccount>& account) {
  absl::MutexLock lock(&mutex_);
  if (reads_++ == 0) account_ = account;
  Count();
  return next_read_++;
}

void Arrivals::EndRead(uint64_t read) {
  absl::MutexLock lock(&mutex_);
  SORTITION_CHECK(reads_ > 0);
  --reads_;
  if (IsGivenUp(read)) --given_up_reads_;
  Count();
  if (reads_ != 0) return;
  account_->EndTurn(this);
  account_ = nullptr;
}

}  // namespace sortition::server

// The log of a sequence's receipts.
#include "sortition/receipts.h"

#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"

namespace sortition::client {

std::string ReceiptLog::Take() {
  absl::MutexLock lock(&mutex_);
  return std::exchange(records_, {});
}

bool ReceiptLog::AwaitEnd(absl::Duration most) const {
  absl::MutexLock lock(&mutex_);
  return mutex_.AwaitWithTimeout(absl::Condition(&has_ended_), most);
}

std::string ReceiptLog::salt() const {
  absl::MutexLock lock(&mutex_);
  return salt_;
}

std::string ReceiptLog::SeedLine() const {
  absl::MutexLock lock(&mutex_);
  return is_open_ ? absl::StrCat(seed_, " ", absl::BytesToHexString(salt_)) : std::string();
}

void ReceiptLog::OnOpened(uint64_t seed, std::string_view salt, std::string_view records) {
  absl::MutexLock lock(&mutex_);
  seed_ = seed;
  salt_ = salt;
  is_open_ = true;
  records_ += records;
}

void ReceiptLog::OnRecords(std::string_view records) {
  absl::MutexLock lock(&mutex_);
  records_ += records;
}

void ReceiptLog::OnClosed(std::string_view records) {
  absl::MutexLock lock(&mutex_);
  records_ += records;
  has_ended_ = true;
}

}  // namespace sortition::client

// Receipts of a sequence, as the service returns them (docs/receipts.md).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

namespace sortition::client {

// Gathers the records of one sequence. Thread-safe. Grows by some 120 bytes and 8 a kept token with each token, until
// Take is called.
class ReceiptLog {
 public:
  // `salt` hides the seed in the receipts: 16 bytes, or empty for one that the service draws.
  explicit ReceiptLog(std::string salt = {}) : salt_(std::move(salt)) {}

  // Returns the records that have come since the last call. All of them in their order are a file of receipts.
  std::string Take();
  // Returns the line that opens the commitment to the seed: "SEED SALT". A secret until it is published. Empty until
  // the sequence is open.
  std::string SeedLine() const;
  // Blocks until the last signature has come after the end of the sequence's handle, at most this long. Returns false
  // if it has not: then the last receipts are not signed.
  bool AwaitEnd(absl::Duration most) const;

  // Returns the salt for the client.
  std::string salt() const;
  void OnOpened(uint64_t seed, std::string_view salt, std::string_view records);
  void OnRecords(std::string_view records);
  void OnClosed(std::string_view records);

 private:
  mutable absl::Mutex mutex_;
  std::string salt_ ABSL_GUARDED_BY(mutex_);
  uint64_t seed_ ABSL_GUARDED_BY(mutex_) = 0;
  bool is_open_ ABSL_GUARDED_BY(mutex_) = false;
  bool has_ended_ ABSL_GUARDED_BY(mutex_) = false;
  std::string records_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace sortition::client

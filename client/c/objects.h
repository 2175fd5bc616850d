// The objects that handles stand for.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "client/c/handles.h"
#include "sortition/client.h"
#include "sortition/local_sequence.h"
#include "sortition/receipts.h"
#include "sortition/v1/parameters.pb.h"

namespace sortition::c {

// A sequence of this process, or of a client. Thread-safe.
class Sequence {
 public:
  explicit Sequence(std::unique_ptr<client::LocalSequence> local) : local_(std::move(local)) {}
  Sequence(std::unique_ptr<client::Sequence> remote, std::weak_ptr<client::Client> owner)
      : remote_(std::move(remote)), owner_(std::move(owner)) {}

  // Null for a local sequence.
  client::Sequence* remote() const { return remote_.get(); }
  // Returns the client of a sequence that is not local; null if it is closed.
  std::shared_ptr<client::Client> owner() const { return owner_.lock(); }

  // Runs `use` on the local sequence, which must be one.
  template <typename Use>
  auto WithLocal(const Use& use) const {
    absl::MutexLock lock(&mutex_);
    return use(*local_);
  }

  // Runs `use`, which takes a sequence of either class.
  template <typename Use>
  auto With(const Use& use) const {
    return remote_ != nullptr ? use(*remote_) : WithLocal(use);
  }

 private:
  mutable absl::Mutex mutex_;
  const std::unique_ptr<client::LocalSequence> local_ ABSL_PT_GUARDED_BY(mutex_);
  const std::unique_ptr<client::Sequence> remote_;
  const std::weak_ptr<client::Client> owner_;
};

// The log of a sequence's receipts, and the receipts that did not fit the caller's memory. Thread-safe.
class Receipts {
 public:
  explicit Receipts(std::string salt) : log_(std::make_shared<client::ReceiptLog>(std::move(salt))) {}

  const std::shared_ptr<client::ReceiptLog>& log() const { return log_; }
  // Moves the records to `to` if they fit. Returns their size.
  size_t Take(std::span<uint8_t> to);

 private:
  const std::shared_ptr<client::ReceiptLog> log_;
  absl::Mutex mutex_;
  std::string waiting_ ABSL_GUARDED_BY(mutex_);
};

// Marks a thread as running a callback of the caller.
class InCallback {
 public:
  InCallback() { ++depth(); }
  ~InCallback() { --depth(); }
  static bool here() { return depth() != 0; }

 private:
  static int& depth() {
    thread_local int depth = 0;
    return depth;
  }
};

// Ends a client with its last reference, which a call in a callback may hold. A callback's thread cannot wait for
// itself, so another thread ends the client then.
struct EndClient {
  std::shared_ptr<absl::Notification> ended = std::make_shared<absl::Notification>();
  void operator()(client::Client* last) const;
};

using AllParameters = Handles<sortition_parameters, v1::SamplingParameters>;
using AllReceipts = Handles<sortition_receipts, Receipts>;
using AllSequences = Handles<sortition_sequence, Sequence>;
using AllClients = Handles<sortition_client, client::Client>;

// Converts the caller's options.
absl::StatusOr<client::SequenceOptions> ReadSequenceOptions(const sortition_sequence_options* given);

// Returns the log of an option, null for none. Refuses one that a sequence has.
absl::StatusOr<std::shared_ptr<client::ReceiptLog>> ReadReceipts(const sortition_receipts* given);

}  // namespace sortition::c

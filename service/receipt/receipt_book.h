// The receipts of a server: a chain for each opening of a sequence, the key that signs them, and the thread that
// appends them to files.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "service/event_log.h"
#include "service/followed_files.h"
#include "service/observer.h"
#include "service/receipt/receipt_files.h"
#include "service/receipt/receipt_key.h"
#include "service/receipt/receipt_settings.h"
#include "service/receipt/record.h"
#include "service/refusal.h"
#include "service/steady_cond_var.h"

namespace sortition::service {

class ReceiptBook;

// The receipts of one opening of a sequence, owned by a shared_ptr. Thread-safe. Refers to the book, which outlives it.
class ReceiptChain : public std::enable_shared_from_this<ReceiptChain> {
 public:
  // A client gets a signature after this many receipts of a chain, and at its end.
  static constexpr uint64_t kSignedReceipts = 256;

  // `is_asked`: the worker gets the receipts.
  ReceiptChain(ReceiptBook* book, const ReceiptOpening& opening, bool is_asked);

  // Return records for the worker, empty unless it has asked.
  std::string Opening() const { return is_asked_ ? opening_ : std::string(); }
  // Adds receipts of one answer: sets their chain, index and previous hash.
  std::string Add(std::vector<Receipt> receipts);
  // Says that the sequence was closed. Returns a signature. Receipts of steps that are in flight may follow.
  std::string End();

 private:
  friend class ReceiptBook;

  ReceiptBook& book_;
  const bool is_asked_;
  std::string opening_;  // a record
  absl::Mutex mutex_;
  ReceiptHead head_ ABSL_GUARDED_BY(mutex_);
  // Guarded by the book's files_mutex_: the file that has the opening, and the place among the unsigned chains.
  std::optional<uint32_t> file_;
  std::optional<size_t> unsigned_place_;
};

// Thread-safe.
class ReceiptBook {
 public:
  // Reads the key, and begins the first file at the first receipt. The error names the setting. The other arguments are
  // not owned and outlive the book.
  static absl::StatusOr<std::unique_ptr<ReceiptBook>> Start(ReceiptSettings settings, Observer* observer,
                                                            EventLog* event_log);
  // Writes and signs waiting receipts, once.
  ~ReceiptBook();

  bool records_all() const { return settings_.all; }
  bool writes() const { return !settings_.folder.empty(); }
  // Returns why a row that needs a receipt cannot run now.
  std::optional<Refusal> WhyUnable() const;

  // The file of the key.
  FollowedFiles& files() { return key_file_; }
  // Writes what waits at once. Returns why it cannot. Called by the thread, and by tests.
  absl::Status Flush();

 private:
  friend class ReceiptChain;

  // Receipts of one answer on their way to a file.
  struct Entry {
    std::shared_ptr<ReceiptChain> chain;
    std::string records;
    uint32_t receipts = 0;
    ReceiptHead head;  // after them
  };

  ReceiptBook(ReceiptSettings settings, Observer* observer, EventLog* event_log);

  absl::Status UseKey(const FileReader& read);
  std::shared_ptr<const ReceiptKey> key() const;
  // Returns a record that signs these heads.
  std::string Sign(std::vector<ReceiptHead> heads) const;
  // Takes an answer's receipts for the files. Drops them if the queue is full.
  void Queue(Entry entry);
  void Run();
  absl::Status WriteReceipts() ABSL_EXCLUSIVE_LOCKS_REQUIRED(files_mutex_);
  absl::Status WriteSignature() ABSL_EXCLUSIVE_LOCKS_REQUIRED(files_mutex_);
  bool IsSignatureDue() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(files_mutex_);

  const ReceiptSettings settings_;
  Observer& observer_;
  EventLog& event_log_;

  mutable absl::Mutex mutex_;
  std::shared_ptr<const ReceiptKey> key_ ABSL_GUARDED_BY(mutex_);
  std::vector<Entry> queue_ ABSL_GUARDED_BY(mutex_);
  uint64_t queued_bytes_ ABSL_GUARDED_BY(mutex_) = 0;  // also those that are being written
  bool is_failing_ ABSL_GUARDED_BY(mutex_) = false;
  bool is_stopping_ ABSL_GUARDED_BY(mutex_) = false;
  SteadyCondVar changed_;

  // Held while files are written.
  absl::Mutex files_mutex_ ABSL_ACQUIRED_BEFORE(mutex_);
  ReceiptFiles files_ ABSL_GUARDED_BY(files_mutex_);
  std::vector<Entry> writing_ ABSL_GUARDED_BY(files_mutex_);  // taken off the queue and not written yet
  // The chains with receipts that no signature of the current file has, and their states as written.
  std::vector<std::pair<std::shared_ptr<ReceiptChain>, ReceiptHead>> unsigned_ ABSL_GUARDED_BY(files_mutex_);
  uint64_t unsigned_receipts_ ABSL_GUARDED_BY(files_mutex_) = 0;
  absl::Time unsigned_since_ ABSL_GUARDED_BY(files_mutex_) = absl::InfiniteFuture();

  FollowedFiles key_file_;
  std::thread thread_;  // from the end of Start on
};

}  // namespace sortition::service

// Chains have their own locks, and one thread writes their records.
#include "service/receipt/receipt_book.h"

#include <sys/stat.h>

#include <algorithm>
#include <iterator>

#include "absl/strings/str_cat.h"
#include "kernels/check.h"

namespace sortition::service {
namespace {

// Receipts wait this long for others that are written with them. They are lost if the process is killed meanwhile.
constexpr absl::Duration kGather = absl::Milliseconds(10);
constexpr uint64_t kGatherBytes = 1 << 20;
// A file's receipts are signed once there are kSignedTogether of them, or after kSignedWithin.
constexpr uint64_t kSignedTogether = 4096;
constexpr absl::Duration kSignedWithin = absl::Seconds(1);
constexpr absl::Duration kRetry = absl::Seconds(1);
constexpr size_t kMostHeads = 65'536;  // of one signature

}  // namespace

ReceiptChain::ReceiptChain(ReceiptBook* book, const ReceiptOpening& opening, bool is_asked)
    : book_(*book), is_asked_(is_asked), head_(BeginChain(opening, &opening_)) {}

std::string ReceiptChain::Add(std::vector<Receipt> receipts) {
  const auto count = static_cast<uint32_t>(receipts.size());
  std::string records;
  std::optional<ReceiptHead> to_sign;
  {
    absl::MutexLock lock(&mutex_);
    const uint64_t signed_before = head_.receipts / kSignedReceipts;
    ContinueChain(std::move(receipts), &head_, &records);
    if (is_asked_ && (head_.has_ended || head_.receipts / kSignedReceipts > signed_before)) to_sign = head_;
    // Under the lock, so that the files have the chain's order.
    if (book_.writes()) {
      book_.Queue({shared_from_this(), is_asked_ ? records : std::move(records), count, head_});
    }
  }
  book_.observer_.Count(Counter::kReceiptsMade, count);
  if (!is_asked_) return "";
  if (to_sign) records += book_.Sign({*to_sign});
  return records;
}

std::string ReceiptChain::End() {
  ReceiptHead head;
  {
    absl::MutexLock lock(&mutex_);
    head_.has_ended = true;
    head = head_;
    if (head.receipts > 0 && book_.writes()) book_.Queue({shared_from_this(), "", 0, head});
  }
  return is_asked_ ? book_.Sign({head}) : "";
}

absl::StatusOr<std::unique_ptr<ReceiptBook>> ReceiptBook::Start(ReceiptSettings settings, Observer* observer,
                                                                EventLog* event_log) {
  struct stat folder;
  if (!settings.folder.empty() && (::stat(settings.folder.c_str(), &folder) != 0 || !S_ISDIR(folder.st_mode))) {
    return absl::InvalidArgumentError(absl::StrCat("--receipt_folder: ", settings.folder, " is no folder"));
  }
  std::unique_ptr<ReceiptBook> book(new ReceiptBook(std::move(settings), observer, event_log));
  if (absl::Status status = book->key_file_.Start(); !status.ok()) {
    return absl::InvalidArgumentError(absl::StrCat("--receipt_key: ", status.message()));
  }
  book->thread_ = std::thread([book = book.get()] { book->Run(); });
  return book;
}

ReceiptBook::ReceiptBook(ReceiptSettings settings, Observer* observer, EventLog* event_log)
    : settings_(std::move(settings)),
      observer_(*observer),
      event_log_(*event_log),
      files_(settings_.folder, settings_.time_of_day()),
      key_file_(
          FollowedFile::kReceiptKey, absl::Seconds(1), [this](const FileReader& read) { return UseKey(read); },
          observer, event_log) {}

ReceiptBook::~ReceiptBook() {
  if (!thread_.joinable()) return;
  {
    absl::MutexLock lock(&mutex_);
    is_stopping_ = true;
    changed_.NotifyAll();
  }
  thread_.join();
  uint32_t lost = 0;
  absl::MutexLock files_lock(&files_mutex_);
  for (const Entry& entry : writing_) lost += entry.receipts;
  if (lost > 0) observer_.Count(Counter::kReceiptsLost, lost);
}

absl::Status ReceiptBook::UseKey(const FileReader& read) {
  const auto text = read(settings_.key_file);
  auto key = text.ok() ? ReceiptKey::OfPem(*text) : text.status();
  if (!key.ok()) {
    return absl::InvalidArgumentError(absl::StrCat(settings_.key_file, ": ", key.status().message()));
  }
  absl::MutexLock lock(&mutex_);
  key_ = *std::move(key);
  return absl::OkStatus();
}

std::shared_ptr<const ReceiptKey> ReceiptBook::key() const {
  absl::MutexLock lock(&mutex_);
  return key_;
}

std::string ReceiptBook::Sign(std::vector<ReceiptHead> heads) const {
  ReceiptSignature signature;
  signature.time = static_cast<uint64_t>(absl::ToUnixMillis(settings_.time_of_day()));
  signature.heads = std::move(heads);
  key()->Sign(&signature);
  std::string record;
  AppendRecord(ReceiptRecord::kSignature, EncodeBody(signature), &record);
  return record;
}

std::optional<Refusal> ReceiptBook::WhyUnable() const {
  if (!settings_.required) return std::nullopt;
  absl::MutexLock lock(&mutex_);
  if (!is_failing_ && queued_bytes_ < settings_.queue_bytes / 2) return std::nullopt;
  return Refusal{Reason::kReceiptsNotWritten, "", "", "receipts are required, and cannot be written now", kRetry};
}

void ReceiptBook::Queue(Entry entry) {
  const uint32_t receipts = entry.receipts;
  {
    absl::MutexLock lock(&mutex_);
    const uint64_t bytes = sizeof(entry) + entry.records.size();
    if (queued_bytes_ + bytes <= settings_.queue_bytes) {
      queued_bytes_ += bytes;
      queue_.push_back(std::move(entry));
      if (queue_.size() == 1 || queued_bytes_ >= kGatherBytes) changed_.NotifyOne();
      return;
    }
  }
  if (receipts > 0) observer_.Count(Counter::kReceiptsLost, receipts);
}

void ReceiptBook::Run() {
  for (bool stops = false; !stops;) {
    {
      absl::MutexLock lock(&mutex_);
      if (is_failing_) {
        changed_.WaitFor(&mutex_, kRetry, [this]() ABSL_NO_THREAD_SAFETY_ANALYSIS { return is_stopping_; });
      } else if (changed_.WaitFor(&mutex_, kSignedWithin, [this]() ABSL_NO_THREAD_SAFETY_ANALYSIS {
                   return is_stopping_ || !queue_.empty();
                 })) {
        changed_.WaitFor(&mutex_, kGather, [this]() ABSL_NO_THREAD_SAFETY_ANALYSIS {
          return is_stopping_ || queued_bytes_ >= kGatherBytes;
        });
      }
      stops = is_stopping_;
    }
    key_file_.Follow(SteadyClock().Now());
    Flush().IgnoreError();  // it is logged
  }
}

absl::Status ReceiptBook::Flush() {
  absl::Status status;
  {
    absl::MutexLock files_lock(&files_mutex_);
    {
      absl::MutexLock lock(&mutex_);
      std::ranges::move(queue_, std::back_inserter(writing_));
      queue_.clear();
    }
    status = WriteReceipts();
    if (status.ok() && IsSignatureDue()) status = WriteSignature();
    if (status.ok() && files_.size() >= settings_.file_bytes) {
      status = unsigned_.empty() ? absl::OkStatus() : WriteSignature();
      if (status.ok()) files_.Rotate();
    }
  }
  bool changes;
  {
    absl::MutexLock lock(&mutex_);
    changes = is_failing_ == status.ok();
    is_failing_ = !status.ok();
  }
  if (changes) {
    observer_.Set(Gauge::kReceiptsFailing, status.ok() ? 0 : 1);
    event_log_.ReceiptsChanged(status.ok(), status.ok() ? settings_.folder : std::string(status.message()));
  }
  return status;
}

absl::Status ReceiptBook::WriteReceipts() {
  if (writing_.empty()) return absl::OkStatus();
  std::string bytes;
  std::vector<ReceiptChain*> opened;
  for (const Entry& entry : writing_) {
    if (entry.chain->file_ != files_.number()) {
      bytes += entry.chain->opening_;
      entry.chain->file_ = files_.number();
      opened.push_back(entry.chain.get());
    }
    bytes += entry.records;
  }
  if (absl::Status status = files_.Write(bytes); !status.ok()) {
    for (ReceiptChain* chain : opened) chain->file_.reset();
    return status;
  }
  uint64_t taken = 0;
  uint32_t receipts = 0;
  for (Entry& entry : writing_) {
    taken += sizeof(entry) + entry.records.size();
    receipts += entry.receipts;
    std::optional<size_t>& place = entry.chain->unsigned_place_;
    if (!place) {
      place = unsigned_.size();
      unsigned_.emplace_back(entry.chain, entry.head);
    }
    unsigned_[*place].second = entry.head;
  }
  if (unsigned_receipts_ == 0) unsigned_since_ = SteadyClock().Now();
  unsigned_receipts_ += std::max(1u, receipts);
  writing_.clear();
  {
    absl::MutexLock lock(&mutex_);
    queued_bytes_ -= taken;
  }
  if (receipts > 0) observer_.Count(Counter::kReceiptsWritten, receipts);
  return absl::OkStatus();
}

bool ReceiptBook::IsSignatureDue() const {
  if (unsigned_.empty()) return false;
  if (unsigned_receipts_ >= kSignedTogether || SteadyClock().Now() - unsigned_since_ >= kSignedWithin) return true;
  absl::MutexLock lock(&mutex_);
  return is_stopping_;
}

absl::Status ReceiptBook::WriteSignature() {
  std::string records;
  for (size_t first = 0; first < unsigned_.size(); first += kMostHeads) {
    std::vector<ReceiptHead> heads;
    for (size_t i = first; i < std::min(unsigned_.size(), first + kMostHeads); ++i) {
      heads.push_back(unsigned_[i].second);
    }
    records += Sign(std::move(heads));
  }
  if (absl::Status status = files_.Write(records); !status.ok()) return status;
  for (const auto& [chain, head] : unsigned_) chain->unsigned_place_.reset();
  unsigned_.clear();
  unsigned_receipts_ = 0;
  return files_.Sync();
}

}  // namespace sortition::service

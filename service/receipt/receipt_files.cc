// Appends whole batches of records, and takes back those that the disk took in part.
#include "service/receipt/receipt_files.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"

namespace sortition::service {
namespace {

absl::Status Failed(const std::string& path, int error) {
  return absl::UnavailableError(absl::StrCat(path, ": ", std::strerror(error)));
}

}  // namespace

ReceiptFiles::ReceiptFiles(std::string folder, absl::Time started)
    : folder_(std::move(folder)), started_(static_cast<uint64_t>(absl::ToUnixMillis(started))) {}

ReceiptFiles::~ReceiptFiles() {
  if (file_ >= 0) ::close(file_);
}

absl::Status ReceiptFiles::Open() {
  path_ = absl::StrCat(folder_, "/receipts-", started_, "-", number_, ".bin");
  file_ = ::open(path_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_APPEND | O_CLOEXEC, 0640);
  if (file_ < 0) {
    const int error = errno;
    if (error == EEXIST) ++number_;
    return Failed(path_, error);
  }
  size_ = 0;
  return absl::OkStatus();
}

absl::Status ReceiptFiles::Write(std::string_view bytes) {
  if (file_ < 0) {
    if (absl::Status status = Open(); !status.ok()) return status;
  }
  for (size_t written = 0; written < bytes.size();) {
    const ssize_t more = ::write(file_, bytes.data() + written, bytes.size() - written);
    if (more < 0 && errno == EINTR) continue;
    if (more >= 0) {
      written += static_cast<size_t>(more);
      continue;
    }
    const int error = errno;
    // A record that stays cut ends its file.
    if (::ftruncate(file_, static_cast<off_t>(size_)) != 0) Rotate();
    return Failed(path_, error);
  }
  size_ += bytes.size();
  return absl::OkStatus();
}

absl::Status ReceiptFiles::Sync() {
  if (file_ >= 0 && ::fdatasync(file_) != 0) return Failed(path_, errno);
  return absl::OkStatus();
}

void ReceiptFiles::Rotate() {
  if (file_ < 0) return;
  ::close(file_);
  file_ = -1;
  size_ = 0;
  ++number_;
}

}  // namespace sortition::service

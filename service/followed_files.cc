// Reading of files without waiting, and their comparison by digests.
#include "service/followed_files.h"

#include <fcntl.h>
#include <openssl/sha.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"

namespace sortition::service {
namespace {

absl::Status CannotRead() { return absl::NotFoundError(absl::StrCat("cannot be read: ", std::strerror(errno))); }

// Contents are kept as digests, so that no secret is kept.
std::string SeenOf(const absl::StatusOr<std::string>& text) {
  if (!text.ok()) return std::string(text.status().message());
  std::string digest(SHA256_DIGEST_LENGTH, '\0');
  SHA256(reinterpret_cast<const unsigned char*>(text->data()), text->size(),
         reinterpret_cast<unsigned char*>(digest.data()));
  return digest;
}

absl::StatusOr<std::string> ReadAll(int file) {
  struct stat status;
  if (::fstat(file, &status) != 0) return CannotRead();
  if (!S_ISREG(status.st_mode)) return absl::InvalidArgumentError("is no regular file");
  std::string text;
  std::array<char, 16384> part;
  for (;;) {
    const ssize_t count = ::read(file, part.data(), part.size());
    if (count < 0) return CannotRead();
    if (count == 0) return text;
    text.append(part.data(), static_cast<size_t>(count));
    if (text.size() > kMostFileBytes) {
      return absl::InvalidArgumentError(absl::StrCat("has more than ", kMostFileBytes, " bytes"));
    }
  }
}

}  // namespace

absl::StatusOr<std::string> ReadRegularFile(const std::string& path) {
  // To open a FIFO would wait for a writer without O_NONBLOCK.
  const int file = ::open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC | O_NOCTTY);
  // A socket cannot be opened.
  if (file < 0) return errno == ENXIO ? absl::InvalidArgumentError("is no regular file") : CannotRead();
  auto text = ReadAll(file);
  ::close(file);
  if (text.ok() && text->empty()) return absl::InvalidArgumentError("is empty");
  return text;
}

FollowedFiles::FollowedFiles(FollowedFile file, absl::Duration period, Use use, Observer* observer, EventLog* event_log)
    : file_(file), period_(period), use_(std::move(use)), observer_(*observer), event_log_(*event_log) {}

absl::Status FollowedFiles::Start() {
  absl::MutexLock lock(&mutex_);
  return Load();
}

absl::Status FollowedFiles::Load() {
  std::map<std::string, std::string> seen;
  const absl::Status status = use_([&](const std::string& path) {
    absl::StatusOr<std::string> text = ReadRegularFile(path);
    seen[path] = SeenOf(text);
    return text;
  });
  if (absl::IsUnavailable(status)) {
    for (auto& [path, content] : seen) content.clear();
  }
  seen_ = std::move(seen);
  return status;
}

void FollowedFiles::Follow(absl::Time now) {
  {
    absl::MutexLock lock(&mutex_);
    if (now < next_look_) return;
    next_look_ = now + period_;
  }
  Look();
}

void FollowedFiles::Look() {
  absl::MutexLock lock(&mutex_);
  const auto same = [](const auto& entry) { return SeenOf(ReadRegularFile(entry.first)) == entry.second; };
  if (std::ranges::all_of(seen_, same)) return;
  const absl::Status status = Load();
  observer_.Set(kFollowedFileGauges[static_cast<size_t>(file_)], status.ok() ? 0 : 1);
  event_log_.FileRead(file_, std::string(status.message()));
}

}  // namespace sortition::service

// Files of receipts, piece by piece.
#include "client/receipts/receipt_file.h"

#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"

namespace sortition::client {
namespace {

constexpr size_t kReadBytes = 1 << 20;

// Says on a terminal how far a long file is.
class Progress {
 public:
  explicit Progress(std::string path) : path_(std::move(path)), shown_(isatty(STDERR_FILENO) == 1) {}
  ~Progress() {
    if (any_) std::fprintf(stderr, "\r\033[K");
  }
  void Add(uint64_t bytes) {
    done_ += bytes;
    const auto now = std::chrono::steady_clock::now();
    if (!shown_ || now - last_ < std::chrono::seconds(1)) return;
    last_ = now;
    any_ = true;
    std::fprintf(stderr, "\r%s: %llu MiB", path_.c_str(), static_cast<unsigned long long>(done_ >> 20));
  }

 private:
  const std::string path_;
  const bool shown_;
  bool any_ = false;
  uint64_t done_ = 0;
  std::chrono::steady_clock::time_point last_ = std::chrono::steady_clock::now();
};

}  // namespace

absl::Status ReadPieces(const std::string& path, absl::FunctionRef<bool(std::string_view)> take) {
  const auto close = [](std::FILE* file) {
    if (file != stdin) std::fclose(file);
  };
  const std::unique_ptr<std::FILE, decltype(close)> file(path == "-" ? stdin : std::fopen(path.c_str(), "rb"), close);
  if (file == nullptr) return absl::InvalidArgumentError(absl::StrCat(path, " cannot be read"));
  Progress progress(path);
  std::string bytes(kReadBytes, '\0');
  for (bool wants_more = true; wants_more;) {
    const size_t count = std::fread(bytes.data(), 1, bytes.size(), file.get());
    if (count == 0) break;
    wants_more = take(std::string_view(bytes).substr(0, count));
    progress.Add(count);
  }
  if (std::ferror(file.get()) != 0) return absl::InvalidArgumentError(absl::StrCat(path, " cannot be read"));
  return absl::OkStatus();
}

absl::Status ReadRecords(const std::string& path,
                         absl::FunctionRef<absl::Status(uint8_t type, std::string_view body)> take) {
  RecordReader reader;
  absl::Status taken;
  const absl::Status status = ReadPieces(path, [&](std::string_view piece) {
    const auto too_long = reader.Read(piece, [&](uint8_t type, std::string_view body) {
      if (taken.ok()) taken = take(type, body);
    });
    if (taken.ok() && too_long) taken = absl::InvalidArgumentError(absl::StrCat("a record of ", *too_long, " bytes"));
    return taken.ok();
  });
  if (!status.ok()) return status;
  if (!taken.ok()) return absl::InvalidArgumentError(absl::StrCat(path, ": bad_record: ", taken.message()));
  if (const size_t cut = reader.End(); cut > 0) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": cut_record: the last ", cut, " bytes are part of a record"));
  }
  return absl::OkStatus();
}

absl::Status ReadReceipts(const std::string& path, ReceiptCheck* check, absl::FunctionRef<bool()> wants_more) {
  const absl::Status status = ReadPieces(path, [&](std::string_view piece) {
    check->Read(piece);
    return wants_more();
  });
  if (status.ok()) check->EndFile();
  return status;
}

absl::StatusOr<std::vector<SeedOpening>> ReadSeeds(const std::string& path) {
  const auto text = ReadBytes(path);
  if (!text.ok()) return absl::InvalidArgumentError(absl::StrCat("--seeds: ", text.status().message()));
  auto seeds = ParseSeeds(*text);
  if (seeds.ok()) return seeds;
  return absl::InvalidArgumentError(absl::StrCat("--seeds: ", path, ": ", seeds.status().message()));
}

}  // namespace sortition::client

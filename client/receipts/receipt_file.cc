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

absl::Status ReadReceipts(const std::string& path, ReceiptCheck* check, absl::FunctionRef<bool()> wants_more) {
  const auto close = [](std::FILE* file) {
    if (file != stdin) std::fclose(file);
  };
  const std::unique_ptr<std::FILE, decltype(close)> file(path == "-" ? stdin : std::fopen(path.c_str(), "rb"), close);
  if (file == nullptr) return absl::InvalidArgumentError(absl::StrCat(path, " cannot be read"));
  Progress progress(path);
  std::string bytes(kReadBytes, '\0');
  size_t count = 0;
  while (wants_more() && (count = std::fread(bytes.data(), 1, bytes.size(), file.get())) > 0) {
    check->Read(std::string_view(bytes).substr(0, count));
    progress.Add(count);
  }
  if (std::ferror(file.get()) != 0) return absl::InvalidArgumentError(absl::StrCat(path, " cannot be read"));
  check->EndFile();
  return absl::OkStatus();
}

absl::StatusOr<std::vector<SeedOpening>> ReadSeeds(const std::string& path) {
  const auto text = ReadBytes(path);
  if (!text.ok()) return absl::InvalidArgumentError(absl::StrCat("--seeds: ", text.status().message()));
  auto seeds = ParseSeeds(*text);
  if (seeds.ok()) return seeds;
  return absl::InvalidArgumentError(absl::StrCat("--seeds: ", path, ": ", seeds.status().message()));
}

}  // namespace sortition::client

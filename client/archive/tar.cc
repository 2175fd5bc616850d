// Blocks of 512 bytes: a header before each file, and two empty ones at the end.
#include "client/archive/tar.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <set>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "google/protobuf/io/gzip_stream.h"
#include "google/protobuf/io/zero_copy_stream_impl_lite.h"
#include "kernels/check.h"

namespace sortition::archive {
namespace {

constexpr size_t kBlock = 512;
constexpr size_t kMostName = 100;
constexpr size_t kSizeAt = 124, kSumAt = 148, kTypeAt = 156, kMagicAt = 257;

absl::Status Damaged(absl::string_view what) { return absl::InvalidArgumentError(absl::StrCat("damaged: ", what)); }

// Returns the sum of a header's bytes, with spaces in the place of the sum.
uint32_t SumOf(std::string_view header) {
  uint32_t sum = 0;
  for (size_t i = 0; i < kBlock; ++i) {
    sum += i >= kSumAt && i < kSumAt + 8 ? ' ' : static_cast<unsigned char>(header[i]);
  }
  return sum;
}

void PutOctal(uint64_t number, size_t at, size_t digits, std::string* header) {
  for (size_t i = digits; i > 0; --i, number /= 8) (*header)[at + i - 1] = static_cast<char>('0' + number % 8);
}

std::optional<uint64_t> ReadOctal(std::string_view digits) {
  uint64_t number = 0;
  for (const char digit : digits) {
    if (digit == '\0' || digit == ' ') break;
    if (digit < '0' || digit > '7') return std::nullopt;
    number = number * 8 + static_cast<uint64_t>(digit - '0');
  }
  return number;
}

std::string HeaderOf(const std::string& name, uint64_t bytes) {
  SORTITION_CHECK(name.size() <= kMostName);
  std::string header(kBlock, '\0');
  header.replace(0, name.size(), name);
  header.replace(100, 7, "0000644");  // mode
  header.replace(108, 7, "0000000");  // owner
  header.replace(116, 7, "0000000");  // group
  PutOctal(bytes, kSizeAt, 11, &header);
  header.replace(136, 11, "00000000000");  // time
  header[kTypeAt] = '0';
  header.replace(kMagicAt, 8, std::string("ustar\0", 6) + "00");
  PutOctal(SumOf(header), kSumAt, 6, &header);
  header[kSumAt + 7] = ' ';
  return header;
}

// Returns the unpacked bytes.
absl::StatusOr<std::string> Inflate(std::string_view archive, uint64_t most_bytes) {
  google::protobuf::io::ArrayInputStream packed(archive.data(), static_cast<int>(archive.size()));
  google::protobuf::io::GzipInputStream stream(&packed, google::protobuf::io::GzipInputStream::GZIP);
  std::string bytes;
  const void* piece;
  for (int size; stream.Next(&piece, &size);) {
    if (bytes.size() + static_cast<size_t>(size) > most_bytes) {
      return absl::InvalidArgumentError(absl::StrCat("too large: more than ", most_bytes, " bytes unpacked"));
    }
    bytes.append(static_cast<const char*>(piece), static_cast<size_t>(size));
  }
  constexpr int kDataError = -3;  // of zlib
  if (stream.ZlibErrorCode() == kDataError) return Damaged("no gzip, or bytes of it have changed");
  // A gzip ends with its length. The stream takes any end of its input for the end of the gzip.
  uint32_t length = 0;
  if (archive.size() >= sizeof(length)) {
    std::memcpy(&length, archive.data() + archive.size() - sizeof(length), sizeof(length));
  }
  if (bytes.empty() || length != bytes.size()) return absl::InvalidArgumentError("cut: the gzip ends early");
  return bytes;
}

}  // namespace

std::string PackFiles(const TarFiles& files) {
  std::string tar;
  for (const auto& [name, content] : files) {
    tar += HeaderOf(name, content.size());
    tar += content;
    tar.append((kBlock - content.size() % kBlock) % kBlock, '\0');
  }
  tar.append(2 * kBlock, '\0');
  std::string packed;
  google::protobuf::io::StringOutputStream to(&packed);
  google::protobuf::io::GzipOutputStream::Options options;
  options.compression_level = 9;
  google::protobuf::io::GzipOutputStream stream(&to, options);
  for (size_t written = 0; written < tar.size();) {
    void* piece;
    int size;
    SORTITION_CHECK(stream.Next(&piece, &size));
    const size_t taken = std::min(static_cast<size_t>(size), tar.size() - written);
    std::memcpy(piece, tar.data() + written, taken);
    stream.BackUp(size - static_cast<int>(taken));
    written += taken;
  }
  SORTITION_CHECK(stream.Close());
  return packed;
}

absl::StatusOr<TarFiles> UnpackFiles(std::string_view archive, uint64_t most_bytes) {
  const auto tar = Inflate(archive, most_bytes);
  if (!tar.ok()) return tar.status();
  std::string_view left = *tar;
  TarFiles files;
  std::set<std::string> names;
  for (;;) {
    if (left.size() < kBlock) return absl::InvalidArgumentError("cut: the tar ends early");
    const std::string_view header = left.substr(0, kBlock);
    left.remove_prefix(kBlock);
    if (header.find_first_not_of('\0') == std::string_view::npos) return files;
    const auto bytes = ReadOctal(header.substr(kSizeAt, 12));
    if (header.substr(kMagicAt, 5) != "ustar" || !bytes || ReadOctal(header.substr(kSumAt, 8)) != SumOf(header)) {
      return Damaged("no tar, or a header of it has changed");
    }
    const std::string name(header.substr(0, std::min(header.find('\0'), kMostName)));
    if (header[kTypeAt] != '0' && header[kTypeAt] != '\0') return Damaged(absl::StrCat(name, " is no regular file"));
    if (!names.insert(name).second) return Damaged(absl::StrCat(name, " is there twice"));
    if (*bytes > left.size()) return absl::InvalidArgumentError(absl::StrCat("cut: ", name, " ends early"));
    files.emplace_back(name, left.substr(0, *bytes));
    left.remove_prefix(std::min<uint64_t>(left.size(), (*bytes + kBlock - 1) / kBlock * kBlock));
  }
}

}  // namespace sortition::archive

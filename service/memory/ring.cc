// Positions, copies and sleep.
#include "service/memory/ring.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <ctime>

#include "kernels/check.h"

namespace sortition::service {
namespace {

constexpr uint64_t kHeaderBytes = 8;

uint64_t Padded(uint64_t bytes) { return (bytes + 7) / 8 * 8; }

}  // namespace

void RingWriter::Copy(uint64_t at, std::span<const std::byte> part) {
  const uint64_t begin = at % kRingBytes;
  const uint64_t first = std::min<uint64_t>(part.size(), kRingBytes - begin);
  std::memcpy(bytes_ + begin, part.data(), first);
  if (first < part.size()) std::memcpy(bytes_, part.data() + first, part.size() - first);
}

RingStatus RingWriter::Put(std::span<const std::span<const std::byte>> parts) {
  uint64_t size = 0;
  for (const auto& part : parts) size += part.size();
  SORTITION_CHECK(size > 0 && size <= kMostRingMessageBytes);
  const uint64_t unread = written_ - words_.read.load(std::memory_order_acquire);
  // The reader may only advance, and not past the written bytes.
  if (unread > written_ - known_read_) return RingStatus::kBroken;
  known_read_ = written_ - unread;
  const uint64_t needed = kHeaderBytes + Padded(size);
  if (needed > kRingBytes - unread) return RingStatus::kNotNow;
  const uint64_t header = size;
  Copy(written_, std::as_bytes(std::span(&header, 1)));
  uint64_t at = written_ + kHeaderBytes;
  for (const auto& part : parts) {
    Copy(at, part);
    at += part.size();
  }
  written_ += needed;
  words_.written.store(written_, std::memory_order_seq_cst);
  WakeRingReader(&words_);
  return RingStatus::kDone;
}

RingStatus RingReader::Take(std::string* message) {
  const uint64_t read = read_.load(std::memory_order_relaxed);
  const uint64_t available = words_.written.load(std::memory_order_acquire) - read;
  if (available == 0) return RingStatus::kNotNow;
  if (available > kRingBytes || available < kHeaderBytes || available % 8 != 0) return RingStatus::kBroken;
  uint32_t size;  // never wraps around: counts and the ring's size are multiples of 8
  std::memcpy(&size, bytes_ + read % kRingBytes, sizeof(size));
  if (size == 0 || size > kMostRingMessageBytes || Padded(size) > available - kHeaderBytes) return RingStatus::kBroken;
  message->resize(size);
  const uint64_t begin = (read + kHeaderBytes) % kRingBytes;
  const uint64_t first = std::min<uint64_t>(size, kRingBytes - begin);
  std::memcpy(message->data(), bytes_ + begin, first);
  if (first < size) std::memcpy(message->data() + first, bytes_, size - first);
  const uint64_t now = read + kHeaderBytes + Padded(size);
  read_.store(now, std::memory_order_relaxed);
  words_.read.store(now, std::memory_order_release);
  return RingStatus::kDone;
}

void RingReader::Sleep(absl::Duration most) {
  words_.asleep.store(1, std::memory_order_seq_cst);
  if (words_.written.load(std::memory_order_seq_cst) == read_.load(std::memory_order_relaxed)) {
    const timespec timeout = absl::ToTimespec(most);
    syscall(SYS_futex, &words_.asleep, FUTEX_WAIT, 1, &timeout, nullptr, 0);
  }
  words_.asleep.store(0, std::memory_order_relaxed);
}

void RingReader::SleepOn() {
  words_.asleep.store(1, std::memory_order_seq_cst);
  if (words_.written.load(std::memory_order_seq_cst) != read_.load(std::memory_order_relaxed)) WakeRingReader(&words_);
}

void WakeRingReader(RingWords* words) {
  if (words->asleep.load(std::memory_order_seq_cst) == 0 || words->asleep.exchange(0) == 0) return;
  syscall(SYS_futex, &words->asleep, FUTEX_WAKE, 1, nullptr, nullptr, 0);
}

}  // namespace sortition::service

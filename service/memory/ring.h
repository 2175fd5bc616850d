// Messages through memory that two processes share, for a writer and a reader that mean each other well, or not.
//
// A ring holds each message as its length (32 bits), 4 bytes that are not looked at, and its bytes, filled up to a
// multiple of 8. Both ends count the bytes they have written or read, from 0 on; a position is its count modulo the
// ring's size. A reader that is going to sleep says so, and looks once more before it does.
//
// What the other end may write is read once and judged before it is used; each end trusts only its own count.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "absl/time/time.h"

namespace sortition::service {

// One direction, as it lies in shared memory: zeros at first.
struct RingWords {
  alignas(64) std::atomic<uint64_t> written;  // by the writer
  alignas(64) std::atomic<uint64_t> read;     // by the reader
  alignas(64) std::atomic<uint32_t> asleep;   // 1 while the reader sleeps on it (futex), cleared by who wakes it
};
static_assert(std::atomic<uint64_t>::is_always_lock_free && std::atomic<uint32_t>::is_always_lock_free);

// A pair of rings: the words of requests, those of answers, then the bytes of requests and those of answers.
inline constexpr uint64_t kRingBytes = uint64_t{4} << 20;  // of each direction
inline constexpr uint64_t kRingWordsBytes = 4096;
inline constexpr uint64_t kRingPairBytes = kRingWordsBytes + 2 * kRingBytes;
static_assert(2 * sizeof(RingWords) <= kRingWordsBytes);
inline constexpr uint64_t kMostRingMessageBytes = kRingBytes / 2;

struct RingPair {
  // `memory`: kRingPairBytes at a page, zeros when it was made.
  explicit RingPair(std::byte* memory)
      : request_words(reinterpret_cast<RingWords*>(memory)),
        answer_words(request_words + 1),
        request_bytes(memory + kRingWordsBytes),
        answer_bytes(request_bytes + kRingBytes) {}

  RingWords* const request_words;
  RingWords* const answer_words;
  std::byte* const request_bytes;
  std::byte* const answer_bytes;
};

enum class RingStatus {
  kDone,
  kNotNow,  // nothing to read, or no room to write
  kBroken,  // the other end has written what no ring can hold
};

// Not thread-safe.
class RingWriter {
 public:
  RingWriter(RingWords* words, std::byte* bytes) : words_(*words), bytes_(bytes) {}

  // One message in parts, together 1 to kMostRingMessageBytes; wakes the reader.
  RingStatus Put(std::span<const std::span<const std::byte>> parts);

 private:
  void Copy(uint64_t at, std::span<const std::byte> part);

  RingWords& words_;
  std::byte* const bytes_;
  uint64_t written_ = 0;
  uint64_t known_read_ = 0;  // not more than kRingBytes behind written_
};

// Not thread-safe, but for HasMore, StayAwake and SleepOn.
class RingReader {
 public:
  RingReader(RingWords* words, const std::byte* bytes) : words_(*words), bytes_(bytes) {}

  // Copies the next message out.
  RingStatus Take(std::string* message);
  // Whether Take would find something; costs one load.
  bool HasMore() const {
    return words_.written.load(std::memory_order_acquire) != read_.load(std::memory_order_relaxed);
  }
  // Returns when there is something to read, at a Wake, or after `most`; sometimes earlier.
  void Sleep(absl::Duration most);
  // While a thread is in Sleep: the writer need not wake it, for somebody else looks all the time; and the end of that.
  void StayAwake() { words_.asleep.store(0, std::memory_order_seq_cst); }
  void SleepOn();

 private:
  RingWords& words_;
  const std::byte* const bytes_;
  std::atomic<uint64_t> read_ = 0;
};

// Between two looks at a word that another processor writes.
inline void SpinPause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// Ends the sleep of a ring's reader, if it sleeps. Thread-safe.
void WakeRingReader(RingWords* words);

}  // namespace sortition::service

// A message queue in memory that two processes share, for one writer and one reader that do not trust each other.
//
// Each message is its length (32 bits), 4 unused bytes and its content, padded to a multiple of 8. Each end counts the
// bytes that it has written or read, from 0; a position is a count modulo the ring's size. A reader announces that it
// will sleep and looks once more before it does.
//
// Values that the other end may write are read once and checked before use; each end trusts only its own count.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "absl/time/time.h"

namespace sortition::service {

// Control words of one direction in shared memory; initially zero.
struct RingWords {
  alignas(64) std::atomic<uint64_t> written;  // by the writer
  alignas(64) std::atomic<uint64_t> read;     // by the reader
  alignas(64) std::atomic<uint32_t> asleep;   // 1 while the reader sleeps on it (futex); cleared by its waker
};
static_assert(std::atomic<uint64_t>::is_always_lock_free && std::atomic<uint32_t>::is_always_lock_free);

// A pair of rings: control words of requests and of answers, then the bytes of requests and of answers.
inline constexpr uint64_t kRingBytes = uint64_t{4} << 20;  // of each direction
inline constexpr uint64_t kRingWordsBytes = 4096;
inline constexpr uint64_t kRingPairBytes = kRingWordsBytes + 2 * kRingBytes;
static_assert(2 * sizeof(RingWords) <= kRingWordsBytes);
inline constexpr uint64_t kMostRingMessageBytes = kRingBytes / 2;

struct RingPair {
  // `memory`: kRingPairBytes at a page boundary, initially zero.
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
  kBroken,  // the other end has written values that are impossible
};

// Not thread-safe.
class RingWriter {
 public:
  RingWriter(RingWords* words, std::byte* bytes) : words_(*words), bytes_(bytes) {}

  // Writes one message in parts, together 1 to kMostRingMessageBytes, and wakes the reader.
  RingStatus Put(std::span<const std::span<const std::byte>> parts);

 private:
  void Copy(uint64_t at, std::span<const std::byte> part);

  RingWords& words_;
  std::byte* const bytes_;
  uint64_t written_ = 0;
  uint64_t known_read_ = 0;  // not more than kRingBytes behind written_
};

// Not thread-safe, except HasMore, StayAwake and SleepOn.
class RingReader {
 public:
  RingReader(RingWords* words, const std::byte* bytes) : words_(*words), bytes_(bytes) {}

  // Copies the next message to `*message`.
  RingStatus Take(std::string* message);
  // Returns true if Take would find something; costs one load.
  bool HasMore() const {
    return words_.written.load(std::memory_order_acquire) != read_.load(std::memory_order_relaxed);
  }
  // Returns when there is something to read, after a Wake, or after `most`; may return earlier.
  void Sleep(absl::Duration most);
  // StayAwake: tells the writer not to wake a thread that is in Sleep, because another thread polls. SleepOn ends that.
  void StayAwake() { words_.asleep.store(0, std::memory_order_seq_cst); }
  void SleepOn();

 private:
  RingWords& words_;
  const std::byte* const bytes_;
  std::atomic<uint64_t> read_ = 0;
};

// Predicts the next wait from the last one: after quick messages the reader polls, after slow ones it sleeps and uses
// no processor. Thread-safe.
class SpinChoice {
 public:
  // `most`: upper bound on polling before sleep; zero: never poll.
  explicit SpinChoice(absl::Duration most) : most_(most) {}

  // Returns how long to poll before sleeping.
  absl::Duration Next() const {
    const absl::Duration last = absl::Nanoseconds(last_wait_.load(std::memory_order_relaxed));
    return last <= most_ + kWakeUp ? most_ : absl::ZeroDuration();
  }
  // Records a message; `wait`: time since the reader began to wait for it.
  void OnMessage(absl::Duration wait) { last_wait_.store(absl::ToInt64Nanoseconds(wait), std::memory_order_relaxed); }

 private:
  // Delay of waking up, tolerated beyond `most`: otherwise one sleep would prevent polling for the next message.
  static constexpr absl::Duration kWakeUp = absl::Microseconds(50);
  const absl::Duration most_;
  std::atomic<int64_t> last_wait_ = 0;
};

// Pauses between two looks at a word that another processor writes.
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
